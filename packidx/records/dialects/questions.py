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
import functools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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
ANSWERS = ("response", "completion", "output", "answer", "answers", "answerKey")
"""Columns of an answer."""
_MIXED = tuple(
    (question, addition, answer)
    for question, addition in {form[:2]: None for form in _USUAL}
    for answer in ANSWERS
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
_NOTHING = ("", "nan", "NaN")
"""Cells that tables have in place of nothing."""
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
        choices = _choices(record, record[answer])
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


class _Choices(NamedTuple):
    """What a question lets one choose from."""

    letters: tuple[str, ...]
    """The letter, or other label, of each."""
    texts: tuple[str | None, ...]
    """None where a letter has no text."""

    def held(self) -> dict[str, str]:
        """The texts that there are by their letters."""
        pairs = zip(self.letters, self.texts, strict=True)
        return {letter: text for letter, text in pairs if text is not None}


def _said(value: Any, name: str, choices: _Choices | None) -> str:
    """An answer as text; of several the first, of a choice's number its letter.

    Raises:
        BadRecord: ``bad_turn``.
    """
    if name in _LISTED:
        value = _first(value, name, choices is not None)
    is_number = type(value) in (int, float) and math.isfinite(value)
    text = str(value) if is_number else _text(value, name)
    if name in _LISTED and text.strip() in _NOTHING:
        raise BadRecord("bad_turn", f"{name!r} is {text!r}: the question has no answer")
    return text if choices is None else _chosen(text, name, choices, is_number)


def _first(value: Any, name: str, is_choice: bool) -> Any:
    """The first answer that says something, of all that a question has."""
    if isinstance(value, str) and value[:2] in ("['", '["', "{'", '{"'):
        value = _literal(value)
        if value is None:
            raise BadRecord("bad_turn", f"{name!r} is a list as NumPy prints it: write JSON")
    if isinstance(value, OBJECT):
        value = value.get("answer", value.get("text"))  # as VQA and SQuAD have them
    if not isinstance(value, list | tuple):
        return value
    kept = [item for item in value if item not in (None, "")]
    if not kept:
        raise BadRecord("bad_turn", f"{name!r} is empty: the question has no answer")
    if is_choice and len(kept) > 1:
        raise BadRecord("bad_turn", f"{name!r} has {len(kept)} answers to choices: give one")
    return _first(kept[0], name, is_choice)


def _chosen(text: str, name: str, choices: _Choices, is_number: bool) -> str:
    """The answer to choices: a letter or a text as it stands, the letter of a number."""
    held = choices.held()
    if text in held and not is_number:
        return text
    told = not is_number and text in held.values()
    number = int(float(text)) if re.fullmatch(r"-?\d{1,3}(?:\.0)?", text) else None
    if number is None:
        if re.fullmatch("[A-Z]", text) and not told:
            raise BadRecord("bad_turn", f"{name!r} is {text!r}, and choices are {', '.join(held)}")
        return text
    meant = choices.letters[number] if 0 <= number < len(choices.letters) else None
    if told and (meant is None or text == held.get(meant)):
        return text
    if told:
        both = f"{text!r}, which is a choice's text and the number of another one"
        raise BadRecord("bad_turn", f"{name!r} is {both}: a --transform says which is meant")
    if meant not in held:
        has = f"{number}, and there are {len(held)} choices, numbered from 0"
        text = "where a data set counts from 1, all its answers are taken for others"
        raise BadRecord("bad_turn", f"{name!r} is {has}: {text}; use a --transform")
    return str(meant)


def _lettered(asked: str, choices: _Choices | None) -> str:
    """A question with its choices behind it, unless it holds them so."""
    held = {} if choices is None else choices.held()
    lines = [
        text if re.match(rf"\(?{re.escape(letter)}[.):]", text) else f"{letter}. {text}"
        for letter, text in held.items()
    ]
    known = (rf"\(?{re.escape(c)}[.):]\s*{re.escape(text)}" for c, text in held.items())
    if all(line in asked for line in lines) or all(re.search(form, asked) for form in known):
        return asked
    return "\n".join([asked, *lines])


def _choices(record: Mapping[str, Any], answer: Any) -> _Choices | None:
    """The choices of a record; None where there are none of a known form.

    Raises:
        BadRecord: ``bad_turn``, the answer is a number of a choice, and none is there.
    """
    for name in _CHOICES:
        value = record.get(name)
        if isinstance(value, str):
            value = _literal(value)
        letters: Any = _LETTERS
        if isinstance(value, OBJECT) and {"text", "label"} <= value.keys():  # as ARC has them
            value, letters = value["text"], value["label"]
        elif isinstance(value, OBJECT):
            value, letters = list(value.values()), list(value)
        texts = list(value) if isinstance(value, list | tuple) else []
        is_known = all(text is None or type(text) in _PLAIN for text in texts)
        if is_known and 1 < len(texts) <= len(letters):
            held = tuple([None if _is_blank(text) else str(text) for text in texts])
            return _Choices(tuple(map(str, letters[: len(held)])), held)
        if name in record and type(answer) is int and value in (None, [], (), {}):
            what = f"number {answer} of {name!r}, which is empty"
            raise BadRecord("bad_turn", f"the answer is {what}")
    return _columns_of_choices(record)


def _is_blank(text: Any) -> bool:
    return text is None or (isinstance(text, str) and text.strip() in _NOTHING)


def _literal(text: str) -> Any:
    """The list or object that a cell holds, as JSON or as Python writes it; None of any other, and
    where NumPy wrote it, without commas."""
    for load in (orjson.loads, ast.literal_eval) if len(text) < _MAX_CELL else ():
        try:
            value = load(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        is_joined = isinstance(value, list) and len(value) < 2 and re.search(r"['\"]\s+['\"]", text)
        return None if is_joined else value
    return None


def _columns_of_choices(record: Mapping[str, Any]) -> _Choices | None:
    """The choices that stand in columns of their own: ``A``, ``B`` … or ``option_a`` …"""
    texts: list[str | None] = [None] * len(_LETTERS)
    for name, value in record.items():
        number = _number_of(name)
        if number is not None and isinstance(value, str) and not _is_blank(value):
            texts[number] = value
    known = [number for number, text in enumerate(texts) if text is not None]
    if len(known) < 2 or known[0]:
        return None
    last = known[-1] + 1
    return _Choices(tuple(_LETTERS[:last]), tuple(texts[:last]))


@functools.lru_cache(1024)
def _number_of(name: str) -> int | None:
    """The number of the choice that a column is called for; None of any other."""
    match = _LETTER.fullmatch(name)
    return None if match is None else _LETTERS.index((match[1] or match[2]).upper())


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(value)}, not text")
    return value
