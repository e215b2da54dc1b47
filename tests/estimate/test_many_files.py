"""Many small files: memory that does not grow with them, and limits of the system in words."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

RUN = """
import sys
from packidx_cli.main import main
status = main(sys.argv[1:])
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
sys.exit(status)
"""


def write(folder: Path, count: int, **more: object) -> str:
    folder.mkdir(exist_ok=True)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    line = json.dumps({"messages": turns, **more}) + "\n"
    for number in range(count):
        (folder / f"{number:05d}.jsonl").write_text(line)
    return str(folder)


def peak(source: str, output: Path) -> int:
    """Memory of a run, in kB."""
    command = [sys.executable, "-c", RUN, "estimate", source, "-o", str(output)]
    done = subprocess.run([*command, "--workers", "1", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_a_file_takes_little_memory(tmp_path: Path) -> None:
    few, many = write(tmp_path / "few", 300), write(tmp_path / "many", 1800)
    grown = peak(many, tmp_path / "l2") - peak(few, tmp_path / "l1")
    assert grown / 1500 < 25  # kB; Arrow's tables of all files once took 60
