"""Ctrl-C and folders that may not be written to: one sentence, and nothing half done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packidx import estimate_lengths, open_index, plan_packs

PACKIDX = [sys.executable, "-m", "packidx_cli"]


def written(path: Path, records: int, text: str = "Hi ") -> str:
    turns = [{"role": "user", "content": text * 300}, {"role": "assistant", "content": "So."}]
    line = json.dumps({"messages": turns}) + "\n"
    path.write_text(line * records)
    return str(path)


def interrupted(command: list[str], after: float) -> tuple[int, str, int]:
    """Exit status and standard error of a command whose process group gets SIGINT; the group."""
    process = subprocess.Popen(
        [*PACKIDX, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said, process.pid


def is_gone(group: int) -> bool:
    """Whether all processes of a group end within some seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("what", ["estimate", "plan"])
def test_ctrl_c_at_any_moment(tmp_path: Path, what: str) -> None:
    source = written(tmp_path / "x.jsonl", 40_000)
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    old = estimate_lengths(written(tmp_path / "old.jsonl", 100), lengths, workers=1)
    many = estimate_lengths(source, tmp_path / "many", workers=1)
    plan_packs(lengths, index, capacity=8192)
    head = (index / "HEAD").read_bytes()
    command = {
        "estimate": ["estimate", source, "-o", str(lengths), "--workers", "2"],
        "plan": ["plan", str(many.path), "-o", str(index), "--capacity", "4096"],
    }[what]
    draw = random.Random(0)
    stopped = 0
    for number in range(12):
        code, said, group = interrupted(command, 0.3 + number * draw.uniform(0.2, 0.6))
        assert is_gone(group)
        if "init_import_site" in said or "Exception ignored in" in said:
            continue  # Python itself was starting, or lost it in a callback of its own
        assert "Traceback" not in said
        if code == 0:
            break  # it was done
        stopped += 1
        assert code in (1, 130, -signal.SIGINT)  # the last before Python runs a line of ours
        assert code == -signal.SIGINT or said.strip().startswith("packidx: "), said
        fingerprint = json.loads((lengths / "manifest.json").read_text())["fingerprint"]
        if fingerprint != old.fingerprint:
            assert fingerprint == many.fingerprint
            break  # it was done, but for saying so
        if (index / "HEAD").read_bytes() != head:
            assert open_index(index).capacity == 4096
            break  # it was done, but for saying so
    assert stopped
    done = subprocess.run([*PACKIDX, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hidden = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    hidden += [path.name for path in index.rglob(".*") if path.name != ".lock"]
    assert hidden == []
