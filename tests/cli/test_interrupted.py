"""Ctrl-C: one sentence, and nothing half done."""

from __future__ import annotations

import json
import os
<<<<<<< HEAD
=======
import signal
>>>>>>> main
import subprocess
import sys
from pathlib import Path

import pytest

<<<<<<< HEAD
PACKIDX = [sys.executable, "-m", "packidx_cli"]
# What root may do, it may do in any folder.
PLAIN = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
=======
from packidx import estimate_lengths
>>>>>>> main


@pytest.mark.slow
@pytest.mark.parametrize("after", [1.5, 2.5, 4])
def test_ctrl_c(tmp_path: Path, after: float) -> None:
    turns = [{"role": "user", "content": "Hi " * 300}, {"role": "assistant", "content": "So."}]
    line = json.dumps({"messages": turns}) + "\n"
<<<<<<< HEAD
    path.write_text(line * records)
    return str(path)


@pytest.mark.parametrize("what", ["estimate", "plan"])
def test_output_into_a_folder_that_may_not_be_written_to(tmp_path: Path, what: str) -> None:
    (tmp_path / "source").mkdir()
    written(tmp_path / "source" / "x.jsonl", 100)
    (tmp_path / "shut").mkdir()
    for name in ("source", "shut"):
        (tmp_path / name).chmod(0o555)
    lengths = str(tmp_path / "lengths")
    estimate = ["estimate", str(tmp_path / "source"), "-o"]  # reading needs no more
    command = {
        "estimate": [*estimate, str(tmp_path / "shut" / "lengths")],
        "plan": ["plan", lengths, "-o", str(tmp_path / "shut" / "index"), "--capacity", "4096"],
    }[what]
    done = subprocess.run([*PLAIN, *PACKIDX, *estimate, lengths], capture_output=True, check=False)
    assert done.returncode == 0
    done = subprocess.run([*PLAIN, *PACKIDX, *command], capture_output=True, check=False)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.count("\n") == 1
    assert said.endswith("Permission denied\n")
    assert str(tmp_path / "shut") in said
    assert not list((tmp_path / "shut").iterdir())
=======
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
>>>>>>> main
