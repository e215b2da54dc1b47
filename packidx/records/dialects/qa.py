"""Questions and answers in columns of their own, and captions of media.

- A question is a text, and what stands beside it (``input``, ``query``) is joined by a newline, as
  LLaMA-Factory does; TRL's ``prompt`` and ``completion`` may be messages.
- An answer is a text as it stands, also where that is JSON, or a number. A list of equal answers is
  that answer; different ones are refused, unless the layout takes the first.
- Refused are choices in a column of their own, an answer beside a column that has another one, or
  that says it is wrong, and the number of a choice in the question (one record does not say whether
  they count from 0 or 1).
- Of a caption, the record's media are what the user says.

Example: ``{"question": "A. red B. blue", "answer": "B"}`` is read. With ``"answer": 1`` it is
refused, and so it is with a column ``choices``.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import are_messages, build_chat, pair_turns, read_turns
from packidx.records.dialects.raw_record import CAPTIONS, URLS, RawRecord
from packidx.records.media import references as refs

ANSWERS = ("response", "completion", "output", "answer", "answers", "answerKey")
"""Columns of an answer."""
_ASKED = (("prompt", "query"), ("instruction", "input"), ("question", "input"))
_USUAL = {"prompt": ("response", "completion"), "instruction": ("output",), "question": ("answer",)}
FORMS = (
    *((*asked, answer) for asked in _ASKED for answer in _USUAL[asked[0]]),
    *((*asked, ans) for asked in _ASKED for ans in ANSWERS if ans not in _USUAL[asked[0]]),
    ("query", None, "response"),  # ms-swift
)
"""Columns of a question, of what stands beside it, and of the answer; the first that match."""
QUESTIONS = tuple(dict.fromkeys(form[0] for form in FORMS))
"""Columns of a question."""
_BESIDE = ("answer_confidence", "answer_type", "raw_answer", "question_id", "id")
"""Texts beside an answer, in VQA, VizWiz and OK-VQA."""
_NOTHING = ("", "nan", "NaN")
"""Cells that tables have in place of nothing."""

_MEANINGS = {
    "choices": r"(?:\w+[_ ])?(?:choice|option|candidate|ending|distractor|alternative)s?"
    r"(?:[_ ]?(?:[a-h]|\d+|texts?|list))?|(?:possible|candidate|incorrect|wrong)[_ ]answers?",
    "another answer": r"(?:correct|gold|gt|true|right|ground[_ ]?truth)[_ ]?"
    r"(?:answer|option|choice|response)s?(?:[_ ](?:text|letter))?|ground[_ ]?truth|gt|gold",
    "a verdict": r"(?:is|answer)?_?(?:is_)?(?:correct|positive|right|true)|label",
}
"""Columns that change what an answer means, by what they hold."""
_LABEL = re.compile(r"(?:^|[\s(\[])([A-Ha-h0-8]|[iv]{1,4}|[IV]{1,4})[.):\]](?!\d)")
_SECOND = frozenset(("B", "b", "II", "ii", "1", "2"))
_WRONG, _RIGHT, _TRUTH = ("0", "false", "incorrect", "wrong"), ("1", "true"), ("true", "false")
_NUMBER = re.compile(r"-?\d{1,3}(?:\.0)?")


def read_answer(form: tuple[str, str | None, str], raw: RawRecord) -> Conversation | None:
    """A question and its answer, in columns of these names."""
    question, beside, answer = form
    record, layout = raw.columns, raw.layout
    asked, said = record.get(question), record.get(answer)
    if asked is None or said is None:
        return None
    if not (isinstance(asked, str) and isinstance(said, str)):
        listed = [
            [{"role": role, "content": value}] if isinstance(value, str)
            else [dict(value)] if isinstance(value, refs.OBJECT) else value
            for role, value in (("user", asked), ("assistant", said))
        ]  # fmt: skip
        if all(are_messages(each, layout) for each in listed):
            turns = [  # TRL's trainer does not train on answers that the prompt holds
                turn if turn.role in ("user", "system") else replace(turn, train=False)
                for turn in read_turns(raw, listed[0])
            ]
            return build_chat(raw, turns + read_turns(raw, listed[1]))
    texts = [asked, record.get(beside) if beside else None]
    asked = "\n".join(refs.text_of(text, question) for text in texts if text not in (None, ""))
    said = answer_text(said, answer, is_first=layout.answers == "first")
    _refuse_beside(raw, answer, said, asked)
    before = record.get("history") or []
    if not isinstance(before, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in before
    ):
        raise BadRecord("bad_turn", "'history' is not a list of [question, answer]")
    return build_chat(raw, pair_turns(raw, [*before, (asked, said)]))


def read_caption(column: str, raw: RawRecord) -> Conversation | None:
    """A caption in a column of its own, beside media."""
    caption = raw.columns.get(column)
    if caption is None or not any(raw.listed.values()):
        return None
    raw.consumed |= {url for url in URLS if "://" in str(raw.columns.get(url))[:8]}
    said = answer_text(caption, column)
    _refuse_beside(raw, column, said)
    return build_chat(raw, pair_turns(raw, [("", said)]))


def answer_text(value: Any, name: str, *, is_first: bool = False) -> str:
    """Return the answer in the column `name` as text, the first of several if `is_first`; a
    BadRecord (``bad_turn``) if there is none, or there are several that differ."""
    if name in ("answer", "answers") and not isinstance(value, str):
        value = _one_of(value, name, is_first)
    elif name == "answers" and (value[:1], value.rstrip()[-1:]) in (("[", "]"), ("{", "}")):
        text = f"{name!r} is {refs.clip_repr(value)}, a text that may be a list of answers"
        raise BadRecord("bad_turn", f"{text}: name it 'answer' if it is one, or use a --transform")
    refs.refuse_rounded(value, name)
    is_number = type(value) in (int, float) and math.isfinite(value)
    text = str(value) if is_number else refs.text_of(value, name)
    if is_blank(text):
        raise BadRecord("bad_turn", f"{name!r} is {text!r}, no answer: a --transform leaves it out")
    return text


def _one_of(value: Any, name: str, is_first: bool) -> Any:
    """Return the answer of a list of equal ones; also from objects, as VQA and SQuAD have them."""
    if isinstance(value, refs.OBJECT):
        key = "answer" if "answer" in value else "text"
        for other, held in value.items():
            says_more = held and other not in (key, *_BESIDE) and refs.texts_of(held)
            if says_more or ("correct" in other and held is not None and not held):
                text = f"{name!r} is {refs.clip_repr(dict(value))}, which says more than an answer"
                raise BadRecord("bad_turn", f"{text}: a --transform says what is meant")
        value = value.get(key)
    if not isinstance(value, list | tuple):
        return value
    answers = [_one_of(item, name, is_first) for item in value if item not in (None, "")]
    if not answers:
        raise BadRecord("bad_turn", f"{name!r} is empty: the question has no answer")
    if not is_first and any(repr(each) != repr(answers[0]) for each in answers):
        several = f"{name!r} has different answers, {refs.clip_repr(answers)}"
        raise BadRecord("bad_turn", f"{several}: --answers first or a --transform says which")
    return answers[0]


# -- columns that change what an answer means ------------------------------------------------------


@lru_cache(4096)
def meaning_of(name: str) -> str | None:
    """Return what a column holds beside an answer, by its name: a key of `_MEANINGS`, or None."""
    if name in ANSWERS:
        return "another answer"
    found = (what for what, names in _MEANINGS.items() if re.fullmatch(names, name, re.I))
    return next(found, None)


def _refuse_beside(raw: RawRecord, column: str, said: str, asked: str = "") -> None:
    """Refuse choices, another answer, a verdict that an answer is wrong, and a choice's number.

    Args:
        column: of the answer, which says `said`.
        asked: the question; empty for a caption, which has no choices.
    """
    record = raw.columns
    is_lettered = not (is_blank(record.get("A")) or is_blank(record.get("B")))
    is_text = type(record[column]) is str
    for name, value in record.items():
        what = "choices" if is_lettered and name in [*"ABCDEFGH"] else meaning_of(name)
        if what is None or name == column or is_blank(value):
            continue
        is_number = type(value) in (int, float)
        held = value if isinstance(value, list | tuple) else [value]
        texts = [str(each) for each in held if type(each) in (int, float)]
        texts += [*filter(None, map(_normalize_words, refs.texts_of(value)))]
        if what == "a verdict":  # of a caption, any label is one
            word, is_label = str(value).strip().casefold().removesuffix(".0"), name == "label"
            is_truth = _normalize_words(said) in ("yes", "no", *_TRUTH)
            is_own = str(value) == said or (is_label and is_truth)
            is_verdict = word in _WRONG or (is_label and column in CAPTIONS and word in _RIGHT)
            is_refused = is_verdict and not is_own and isinstance(value, str | float | int)
        elif not asked or (is_number and (what == "choices" or is_text)):
            continue
        else:
            is_refused = bool(texts) and _normalize_words(said) not in texts
            is_refused = bool(texts) or not is_text if what == "choices" else is_refused
        if is_refused and name not in raw.layout.stated_columns:
            raw.refused[name] = f"{what} beside {column!r}"
            raw.unknown_keys += [name] * (what == "choices")  # of all records, if of one
    labels = {*_LABEL.findall(asked)} if _NUMBER.fullmatch(said) else {said}
    if said in labels or labels.isdisjoint(_SECOND):
        return
    is_choice = is_text and re.search(rf"[.):\]]\s*{re.escape(said)}(?![\w.])", asked)
    if 0 <= float(said) <= len(labels) > 1 and not is_choice:
        text = f"{column!r} is {refs.clip_repr(record[column])}, perhaps the number of a choice"
        raise BadRecord("bad_turn", f"{text}: a --transform says of which one")


def _normalize_words(text: str) -> str:
    """Return a text in one case, with one space between words and no end."""
    return "" if is_blank(text) else " ".join(text.casefold().split()).rstrip(" .")


def is_blank(value: Any) -> bool:
    """Return True if a column holds nothing."""
    return value is None or (isinstance(value, str) and value.strip() in _NOTHING)
