"""Tables of one question and one answer a row, as messages.

Columns ``prompt``/``response``, ``instruction``/``input``/``output`` (Alpaca, with ``history``),
``question``/``answer``, or any such question with any such answer; or just a medium's ``caption``
or ``text``. Such tables seldom have placeholders: where the texts have none, the media stand before
the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.columns import CAPTIONS
from packidx.records.dialects.webdataset import media_first
from packidx.records.media.references import LIST_KEYS, media_entries, named

_USUAL = (
    ("prompt", "query", "response"),
    ("prompt", "query", "completion"),
    ("instruction", "input", "output"),
    ("question", "input", "answer"),
)
_MIXED = tuple(
    (question, addition, answer)
    for question, addition in {form[:2]: None for form in _USUAL}
    for *_, answer in _USUAL
)
_FORMS = (*_USUAL, *(form for form in _MIXED if form not in _USUAL))


def single_turn(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The record's turns, or None where it is no such row.

    Raises:
        BadRecord: ``bad_turn``, a text is none.
    """
    for question, addition, answer in _FORMS:
        if record.get(question) is None or record.get(answer) is None:
            continue
        # LLaMA-Factory joins an instruction and its input by a newline.
        texts = [record[question]] + ([record.get(addition)] if addition else [])
        asked = "\n".join(_text(text, question) for text in texts if text not in (None, ""))
        return _turns(record, asked, _text(record[answer], answer))
    has_media = any(media_entries(record, kind)[1] for kind in LIST_KEYS)
    for key in CAPTIONS:
        if has_media and record.get(key) is not None:
            return _turns(record, "", _text(record[key], key))
    return None


def _turns(record: Mapping[str, Any], asked: str, answered: str) -> list[dict[str, Any]]:
    turns = []
    for pair in _history(record.get("history")):
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    turned: list[dict[str, Any]] = media_first({**record, "messages": turns})["messages"]
    return turned


def _history(history: Any) -> list[Any]:
    if history in (None, ""):
        return []
    pairs: list[Any] = list(history) if isinstance(history, list | tuple) else [None]
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise BadRecord("bad_turn", "'history' is not a list of [question, answer]")
    return pairs


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(value)}, not text")
    return value
