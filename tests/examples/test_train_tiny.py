"""The examples that train, on a small plan: real processor, worker processes, real loss."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from packidx import estimate_lengths, plan_packs

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def planned(
    corpus: Path, whole_processors: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """--index and --processor of 300 questions about images in packs of 1,024 tokens."""
    folder = tmp_path_factory.mktemp("example")
    shard, processor = folder / "vqa.jsonl", whole_processors / "qwen2.5-vl"
    lines = (corpus / "vqa_single.jsonl").read_bytes().splitlines(keepends=True)
    shard.write_bytes(b"".join(lines[:300]))
    lengths = folder / "lengths"
    estimate_lengths([str(shard)], lengths, processor=str(processor), media_root=str(corpus))
    plan_packs(lengths, folder / "index", capacity=1024)
    return ["--index", str(folder / "index"), "--processor", str(processor)]


def run(script: str, *arguments: object, processes: int = 1) -> str:
    """Standard output of an example."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(start if processes > 1 else []), str(EXAMPLES / script)]
    # Whoever has a GPU tests what CI tests.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [
        float(loss)
        for loss in re.findall(r"^step \d+  loss ([\d.]+)  [\d,]+ tokens/s$", output, re.MULTILINE)
    ]


def test_train_tiny(planned: list[str]) -> None:
    output = run("train_tiny.py", *planned, "--steps", 6)
    steps = re.findall(r"^step +\d+ .* label tokens \(as planned\)", output, re.MULTILINE)
    assert len(steps) == 6 and "'position': 6}" in output
    assert re.search(r"mean loss of the first 3 steps [\d.]+, of the last 3 [\d.]+", output)


@pytest.fixture(scope="module")
def plain(planned: list[str]) -> list[float]:
    """Three steps of plain PyTorch on one process."""
    found = losses(run("train_ddp.py", *planned, "--global-batch", 2, "--steps", 3))
    assert len(set(found)) == 3
    return found


def test_train_ddp(planned: list[str], plain: list[float], tmp_path: Path) -> None:
    """Two processes and one print the same losses; a checkpoint of two goes on with one."""
    options = [*planned, "--global-batch", 2, "--checkpoint", tmp_path / "run.pt"]
    two = losses(run("train_ddp.py", *options, "--steps", 2, processes=2))
    assert torch.load(tmp_path / "run.pt")["data"]["position"] == 4
    more = losses(run("train_ddp.py", *options, "--steps", 1))
    assert two + more == pytest.approx(plain, abs=2e-3)


def test_train_hf(planned: list[str], plain: list[float], tmp_path: Path) -> None:
    """The loss of plain PyTorch; resumed from its own checkpoint on two processes."""
    whole = losses(
        run("train_hf.py", *planned, "--global-batch", 2, "--steps", 3, "--output", tmp_path / "3")
    )
    options = [*planned, "--global-batch", 2, "--output", tmp_path / "2"]
    one = losses(run("train_hf.py", *options, "--steps", 2))
    more = losses(run("train_hf.py", *options, "--steps", 3, "--resume", processes=2))
    assert one + more == pytest.approx(whole, abs=2e-3) and len(whole) == 3
    assert one[:1] == pytest.approx(plain[:1], abs=2e-3)


def test_train_sft(planned: list[str], plain: list[float], tmp_path: Path) -> None:
    options = ("--global-batch", 2, "--steps", 2, "--output", tmp_path)
    told = re.findall(r"'loss': '([\d.]+)'", run("train_sft.py", *planned, *options))
    assert list(map(float, told)) == pytest.approx(plain[:2], rel=1e-3)
