"""Memory that runs out is no verdict on a record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packidx_cli.main import main

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


_HUNGRY = """
import resource, sys
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Turn
template = ChatTemplate(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), most))
try:
    template.render(Conversation((Turn("user", ("hello",)),)))
except MemoryError:
    print("memory")
"""


@pytest.mark.slow
def test_memory_that_runs_out_is_no_verdict_on_a_record() -> None:
    hoard = (
        "{% set n = namespace(x=[]) %}{% for i in range(1000) %}"
        "{% set n.x = n.x + ['a' * 60000000 ~ i] %}{% endfor %}"
    )
    done = subprocess.run(
        [sys.executable, "-c", _HUNGRY, CHATML + hoard], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("memory\n", "")


def test_the_run_ends_where_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hungry_encoder.py").write_text(
        "def encode(record):\n"
        "    return {'input_ids': [1] * 5} if record['a'] else bytearray(1 << 60)\n"
    )
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 0}\n')
    command = ["estimate", "a.jsonl", "-o", "out", "--encode", "hungry_encoder:encode"]
    assert main([*command, "--workers", "1", "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.jsonl, record 1 (a.jsonl#1): memory ran out" in line or (
        "a.jsonl, record 1: memory ran out" in line
    )
    assert not (tmp_path / "out").exists()
