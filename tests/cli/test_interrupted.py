"""Ctrl-C: one sentence, and nothing half done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packidx import estimate_lengths


@pytest.mark.slow
@pytest.mark.parametrize("after", [1.5, 2.5, 4])
def test_ctrl_c(tmp_path: Path, after: float) -> None:
    turns = [{"role": "user", "content": "Hi " * 300}, {"role": "assistant", "content": "So."}]
    line = json.dumps({"messages": turns}) + "\n"
    for name, records in (("old", 100), ("many", 200_000)):
        (tmp_path / f"{name}.jsonl").write_text(line * records)
    lengths = tmp_path / "lengths"
    old = estimate_lengths(str(tmp_path / "old.jsonl"), lengths, workers=1)
    command = [sys.executable, "-m", "packidx_cli", "estimate", str(tmp_path / "many.jsonl")]
    process = subprocess.Popen(
        [*command, "-o", str(lengths), "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "packidx: stopped")
    assert json.loads((lengths / "manifest.json").read_text())["fingerprint"] == old.fingerprint
    for _ in range(100):  # its workers end, too
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("processes are left")
