"""Ctrl-C and folders that may not be written to: one sentence, and nothing half done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKIDX = [sys.executable, "-m", "packidx_cli"]
# What root may do, it may do in any folder.
PLAIN = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


def written(path: Path, records: int, text: str = "Hi ") -> str:
    turns = [{"role": "user", "content": text * 300}, {"role": "assistant", "content": "So."}]
    line = json.dumps({"messages": turns}) + "\n"
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
