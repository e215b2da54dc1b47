"""A chat template is foreign code: what it makes is bounded, and so is the time it takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from packidx_cli.main import main

from packidx.errors import BadRecord
from packidx.processor.chat_template import environment as limits
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Turn

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_text_that_is_too_large_is_refused_whichever_way_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_TEXT", 1000)

    def talk(words: str) -> Conversation:
        return Conversation((Turn("user", (words,)), Turn("assistant", ("good day",))))

    known = ChatTemplate(CHATML)
    assert known.render(talk("a")).text
    fresh = ChatTemplate(CHATML)
    for template in (known, fresh):
        with pytest.raises(BadRecord, match="more than 1,000 characters"):
            template.render(talk("a" * 1000))
    assert fresh.render(talk("a")).text == known.render(talk("a")).text


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
}


def test_the_run_ends_and_names_template_and_record(
    tmp_path: Path,
    processors: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.5)
    endless = "{% if 'wait' in messages[0].content %}" + ENDLESS["loops"] + "{% endif %}"
    folder = tmp_path / "processor"
    shutil.copytree(processors / "qwen2.5-vl", folder)
    (folder / "chat_template.jinja").write_text(CHATML + endless)
    said = {"role": "assistant", "content": "good day"}
    records = [
        {"id": f"number {n}", "messages": [{"role": "user", "content": words}, said]}
        for n, words in enumerate(["hello", "hello", "wait", "hello"])
    ]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    command = ["estimate", str(tmp_path / "talk.jsonl"), "-o", str(tmp_path / "out"), "--quiet"]
    assert main([*command, "--processor", str(folder), "--workers", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/talk.jsonl, record 2 (number 2): {folder}: the chat template has" in line
    assert not (tmp_path / "out").exists()


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
