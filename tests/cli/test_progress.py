"""Progress on a terminal: how much is done, how fast, how long it takes; nothing elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_stderr(command: list[str], terminal: bool) -> str:
    """What `packidx` writes on stderr, which is a terminal or a pipe."""
    line = [sys.executable, "-m", "packidx_cli", *command]
    if not terminal:
        return subprocess.run(line, capture_output=True, text=True, check=True).stderr
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as run:
        os.close(theirs)
        seen = b""
        while True:
            try:
                block = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not block:
                break
            seen += block
    os.close(ours)
    assert run.returncode == 0
    return ESCAPES.sub("", seen.decode())


@pytest.fixture
def records(tmp_path: Path) -> Path:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "word " * 9}]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 3000)
    return tmp_path / "a.jsonl"


def test_a_terminal_sees_how_much_is_done_and_the_time_left(records: Path, tmp_path: Path) -> None:
    seen = on_stderr(["estimate", str(records), "-o", str(tmp_path / "l")], terminal=True)
    megabytes = records.stat().st_size / 1e6
    assert f" of {megabytes:,.1f} MB" in seen and "reading shards" in seen
    assert "3,000 of 3,000 records" in seen
    assert re.search(r"\d+:\d\d(:\d\d)? left|-:--:-- left", seen)


def test_nothing_is_shown_elsewhere_or_if_quiet(records: Path, tmp_path: Path) -> None:
    command = ["estimate", str(records), "-o", str(tmp_path / "l")]
    for terminal, more in ((False, []), (True, ["--quiet"])):
        assert not re.search("left|records|reading", on_stderr([*command, *more], terminal))
