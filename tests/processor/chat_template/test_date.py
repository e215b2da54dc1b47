"""Lengths of a template that writes the date are those of one day."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import pytest

from packidx.estimate import estimate_lengths
from packidx.processor.chat_template import chat_template

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NOW = "{{ 'Today is ' + strftime_now('%d %B %Y') + '.\\n' }}"
GUARDED = "{% if strftime_now is defined %}" + NOW + "{% endif %}"


def set_day(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Datetime:
            return cls(2026, 1, day, tzinfo=tz)

    monkeypatch.setattr(chat_template, "datetime", Datetime)


@pytest.mark.parametrize(("words", "is_dated"), [(NOW, True), (GUARDED, True), ("", False)])
def test_another_day_is_counted_anew(
    words: str,
    is_dated: bool,
    tmp_path: Path,
    processors: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(processors / "qwen2.5-vl", tmp_path / "qwen")
    for template in folder.glob("chat_template.*"):
        template.unlink()
    (folder / "chat_template.jinja").write_text(words + CHATML)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    place, out = str(tmp_path / "a.jsonl"), tmp_path / "out"
    for day in (3, 21):
        set_day(monkeypatch, day)
        summary = estimate_lengths(place, out, processor=folder, workers=1)
        assert summary.existed == (day == 21 and not is_dated)
        assert any("date" in warning for warning in summary.warnings) == is_dated
        encoder = json.loads((out / "manifest.json").read_text())["encoder"]
        assert encoder.get("day") == (f"2026-01-{day:02}" if is_dated else None)
        assert estimate_lengths(place, out, processor=folder, workers=1).existed
