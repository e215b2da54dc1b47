"""Questions and answers in columns of their own, as turns.

- What is asked is a text, what stands beside it (``input``, ``query``) is joined by a newline, as
  LLaMA-Factory does; TRL's ``prompt`` and ``completion`` may be turns.
- Choices are lettered behind the question, a line each: ``A. cat``. They are in ``choices`` or
  ``options``, or in columns ``A``, ``B`` …; an answer that is one's number, from 0, is its letter.
- An answer may be a number, or the first of several.
- A caption is what is said of a medium.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.records.layout import CAPTIONS
from packidx.records.media.references import LIST_KEYS, OBJECT, media_entries, named, role_of

_USUAL = (
    ("prompt", "query", "response"),
    ("prompt", "query", "completion"),
    ("instruction", "input", "output"),
    ("question", "input", "answer"),
)
_ANSWERS = ("response", "completion", "output", "answer", "answers", "answerKey")
_MIXED = tuple(
    (question, addition, answer)
    for question, addition in {form[:2]: None for form in _USUAL}
    for answer in _ANSWERS
)
_FORMS = (
    *_USUAL,
    *(form for form in _MIXED if form not in _USUAL),
    ("query", None, "response"),  # as ms-swift has it
)
_LISTED = ("answer", "answers")  # which may hold several
_CHOICES = ("choices", "options")
_LETTER = re.compile(r"(?:(?:option|choice)s?_?)?([A-Z])|(?:option|choice)s?_?([a-z])")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PLAIN = (str, int, float)
_MAX_CELL = 100_000
_ASKING = ("user", "human", "system")


def question_turns(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The turns of a record without turns, or None where it neither asks nor captions.

    Raises:
        BadRecord: ``bad_turn``, a text is none.
    """
    for question, addition, answer in _FORMS:
        if record.get(question) is None or record.get(answer) is None:
            continue
        if (turns := _trl(record[question], record[answer])) is not None:
            return turns
        texts = [record[question]] + ([record.get(addition)] if addition else [])
        asked = "\n".join(_text(text, question) for text in texts if text not in (None, ""))
        choices = _choices(record)
        said = _said(record[answer], answer, choices)
        return _history(record.get("history")) + _pair(_lettered(asked, choices), said)
    has_media = any(media_entries(record, kind)[1] for kind in LIST_KEYS)
    for key in CAPTIONS:
        if has_media and record.get(key) is not None:
            return _pair("", _text(record[key], key))
    return None


def _pair(asked: str, said: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


def _history(history: Any) -> list[dict[str, Any]]:
    if history in (None, ""):
        return []
    pairs: list[Any] = list(history) if isinstance(history, list | tuple) else [None]
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise BadRecord("bad_turn", "'history' is not a list of [question, answer]")
    return [turn for pair in pairs for turn in _pair(*pair)]


def _trl(prompt: Any, completion: Any) -> list[dict[str, Any]] | None:
    """What TRL's trainer makes of a prompt and a completion of which one is turns: an answer that
    the prompt holds is not trained on."""
    if isinstance(prompt, str) and isinstance(completion, str):
        return None
    asked, said = _turns(prompt, "user"), _turns(completion, "assistant")
    if asked is None or said is None:
        return None
    return [turn if role_of(turn) in _ASKING else {**turn, "train": False} for turn in asked] + said


def _turns(value: Any, role: str) -> list[dict[str, Any]] | None:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    turns = [value] if isinstance(value, OBJECT) else value
    is_turns = isinstance(turns, list | tuple) and all(role_of(turn) is not None for turn in turns)
    return [dict(turn) for turn in turns] if is_turns and turns else None


def _said(value: Any, name: str, choices: Mapping[str, str]) -> str:
    """An answer as text; of several the first, of a choice's number its letter."""
    if name in _LISTED and isinstance(value, OBJECT):
        value = value.get("answer", value.get("text"))  # as VQA and SQuAD have them
    if name in _LISTED and isinstance(value, list | tuple):
        if not value:
            raise BadRecord("bad_turn", f"{name!r} is empty: the question has no answer")
        return _said(value[0], name, choices)
    is_number = type(value) in (int, float) and math.isfinite(value)
    text = str(value) if is_number else _text(value, name)
    is_choice = not is_number and text in (*choices, *choices.values())
    if not choices or is_choice or not re.fullmatch(r"\d{1,3}(?:\.0)?", text):
        return text
    number = int(float(text))
    if number >= len(choices):
        has = f"{number}, and there are {len(choices)} choices"
        raise BadRecord("bad_turn", f"{name!r} is {has}: their numbers count from 0")
    return list(choices)[number]


def _lettered(asked: str, choices: Mapping[str, str]) -> str:
    """A question with its choices behind it, unless it holds them all."""
    if not choices or all(text in asked for text in choices.values()):
        return asked
    return "\n".join([asked, *(_choice(letter, text) for letter, text in choices.items())])


def _choice(letter: str, text: str) -> str:
    is_lettered = re.match(rf"\(?{re.escape(letter)}[.):]", text)
    return text if is_lettered else f"{letter}. {text}"


def _choices(record: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the choices by their letters; empty where there are none of a known form."""
    for name in _CHOICES:
        value = record.get(name)
        if isinstance(value, str):
            value = _literal(value)
        if isinstance(value, OBJECT) and {"text", "label"} <= value.keys():  # as ARC has them
            texts, letters = value["text"], value["label"]
        elif isinstance(value, OBJECT):
            held = {key: text for key, text in value.items() if text is not None}
            texts, letters = list(held.values()), list(held)
        else:
            texts, letters = value, _LETTERS
        if not isinstance(texts, list | tuple) or not 0 < len(texts) <= len(letters):
            continue
        if all(type(text) in _PLAIN for text in texts):
            return {str(c): str(text) for c, text in zip(letters, texts, strict=False)}
    return _columns_of_choices(record)


def _literal(text: str) -> Any:
    """The list or object that a cell holds, as JSON or as Python writes it."""
    for load in (orjson.loads, ast.literal_eval) if len(text) < _MAX_CELL else ():
        try:
            return load(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
    return None


def _columns_of_choices(record: Mapping[str, Any]) -> dict[str, str]:
    """The choices that stand in columns of their own: ``A``, ``B`` … or ``option_a`` …, from the
    first on without a gap."""
    held: dict[str, str] = {}
    for name, value in record.items():
        match = _LETTER.fullmatch(name)
        if match and value and isinstance(value, str):
            held[(match[1] or match[2]).upper()] = value
    choices: dict[str, str] = {}
    for letter in _LETTERS[: len(held)]:
        if letter not in held:
            return {}
        choices[letter] = held[letter]
    return choices if len(choices) > 1 else {}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(value)}, not text")
    return value
