"""examples/train_tiny.py on a small plan: real processor, worker processes, a falling loss."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packidx import estimate_lengths, plan_packs

SCRIPT = Path(__file__).parent.parent / "examples" / "train_tiny.py"


def test_train_tiny(corpus: Path, processors: Path, tmp_path: Path) -> None:
    shard = tmp_path / "vqa.jsonl"
    lines = (corpus / "vqa_single.jsonl").read_bytes().splitlines(keepends=True)
    shard.write_bytes(b"".join(lines[:300]))
    processor = processors / "qwen2.5-vl"
    lengths = tmp_path / "lengths"
    estimate_lengths([str(shard)], lengths, processor=str(processor), media_root=str(corpus))
    plan_packs(lengths, tmp_path / "index", capacity=1024)
    arguments = ["--index", tmp_path / "index", "--processor", processor, "--steps", "6"]
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"^step +\d+ .* label tokens \(as planned\)", done.stdout, re.MULTILINE)
    assert len(steps) == 6 and "'position': 6}" in done.stdout
    assert re.search(r"mean loss of the first 3 steps [\d.]+, of the last 3 [\d.]+", done.stdout)
