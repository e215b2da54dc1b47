"""Questions and answers in columns of their own, as turns.

- What is asked is a text, what stands beside it (``input``, ``query``) is joined by a newline, as
  LLaMA-Factory does; TRL's ``prompt`` and ``completion`` may be turns.
- An answer is a text as it stands, also where that is JSON, or a number. A list of equal answers is
  that answer; different ones are refused. So are choices that the question does not hold, and
  numbers of choices: one record does not say whether they count from 0 or 1. So is an answer beside
  a column that has another one, or that says it is wrong.
- A caption is what is said of a medium.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.layout import CAPTIONS, UNUSED
from packidx.records.media.held import texts_of
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    cut,
    media_entries,
    named,
    refuse_rounded,
    role_of,
)

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
QUESTIONS = frozenset(form[0] for form in _FORMS)
"""Columns of a question."""
_LISTED = ("answer", "answers")  # which may hold several
_CHOICES = re.compile(
    r"(?i:(?:\w+[_ ])?(?:choice|option|candidate|ending|distractor|alternative)s?"
    r"(?:[_ ]?(?:[a-h]|\d+|texts?|list))?|(?:possible|candidate|incorrect|wrong)[_ ]answers?)"
)
_LETTERS = tuple("ABCDEFGH")
_LABELS = re.compile(r"(?:^|[\s(\[])([A-Ha-h0-8]|[iv]{1,4}|[IV]{1,4})[.):\]](?!\d)")
_ORDERS = [
    each.split()
    for each in ("A B C D E F G H", "a b c d e f g h", "i ii iii iv", "I II III IV")
    + ("1 2 3 4 5 6 7 8", "0 1 2 3 4 5 6 7 8")
]
_RIGHT = re.compile(
    r"(?i:(?:correct|gold|gt|true|right|ground[_ ]?truth)[_ ]?(?:answer|option|choice|response)s?"
    r"(?:[_ ](?:text|letter))?|ground[_ ]?truth|gt|gold)"
)
_VERDICT = re.compile(r"(?i:(?:is|answer)?_?(?:is_)?(?:correct|positive|right|true)|label)")
_WRONG = ("0", "false", "incorrect", "wrong")
_NUMBER = re.compile(r"-?\d{1,3}(?:\.0)?")
_BESIDE = ("answer_confidence", "answer_type", "raw_answer", "question_id", "id")
"""Texts beside an answer, in VQA, VizWiz and OK-VQA."""
_NOTHING = ("", "nan", "NaN")
"""Cells that tables have in place of nothing."""
_ASKING = ("user", "human", "system")


def question_turns(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The turns of a record without turns, or None where it neither asks nor captions.

    Raises:
        BadRecord: ``bad_turn``, a text is none.
    """
    if (form := question_form(record)) is not None:
        question, addition, answer = form
        if (turns := _trl(record[question], record[answer])) is not None:
            return turns
        texts = [record[question]] + ([record.get(addition)] if addition else [])
        asked = "\n".join(_text(text, question) for text in texts if text not in (None, ""))
        said = _said(record[answer], answer)
        _refuse_choices(record, asked, answer, said)
        _refuse_others(record, asked, answer, said)
        _refuse_verdicts(record, answer, said)
        return _history(record.get("history")) + _pair(asked, said)
    if (key := caption_column(record)) is not None:
        said = _said(record[key], key)
        _refuse_verdicts(record, key, said)
        return _pair("", said)
    return None


def question_form(record: Mapping[str, Any]) -> tuple[str, str | None, str] | None:
    """Return the columns of a record's question, of what stands beside it, and of its answer."""
    has = (form for form in _FORMS if record.get(form[0]) is not None)
    return next((form for form in has if record.get(form[2]) is not None), None)


def caption_column(record: Mapping[str, Any]) -> str | None:
    """Return the column of the caption of a record's media; None if it has no media."""
    if not any(media_entries(record, kind)[1] for kind in LIST_KEYS):
        return None
    return next((key for key in CAPTIONS if record.get(key) is not None), None)


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


def _said(value: Any, name: str) -> str:
    """An answer as text.

    Raises:
        BadRecord: ``bad_turn``, there is none, or several that differ.
    """
    if name in _LISTED and not isinstance(value, str):
        value = _one_of(value, name)
    elif name == "answers" and (value[:1], value.rstrip()[-1:]) in (("[", "]"), ("{", "}")):
        text = f"{name!r} is {cut(value)}, a text that may be a list of answers"
        raise BadRecord("bad_turn", f"{text}: name it 'answer' if it is one, or use a --transform")
    refuse_rounded(value, name)
    is_number = type(value) in (int, float) and math.isfinite(value)
    text = str(value) if is_number else _text(value, name)
    if text.strip() in _NOTHING:
        raise BadRecord("bad_turn", f"{name!r} is {text!r}, no answer: a --transform leaves it out")
    return text


def _one_of(value: Any, name: str) -> Any:
    """The answer of a list whose answers are all equal; of VQA's and SQuAD's objects, too."""
    if isinstance(value, OBJECT):
        key = "answer" if "answer" in value else "text"
        further = [k for k, v in value.items() if v and k != key and k not in _BESIDE]
        if any(texts_of(value[k]) for k in further) or any(
            _is_wrong(*pair) for pair in value.items()
        ):
            text = f"{name!r} is {cut(dict(value))}, which says more than an answer"
            raise BadRecord("bad_turn", f"{text}: a --transform says what is meant")
        value = value.get(key)
    if not isinstance(value, list | tuple):
        return value
    answers = [_one_of(item, name) for item in value if item not in (None, "")]
    if not answers:
        raise BadRecord("bad_turn", f"{name!r} is empty: the question has no answer")
    if any(type(each) is not type(answers[0]) or each != answers[0] for each in answers):
        several = f"{name!r} has different answers, {cut(answers)}"
        raise BadRecord("bad_turn", f"{several}: a --transform chooses the one to train on")
    return answers[0]


def _is_wrong(key: str, value: Any) -> bool:
    return "correct" in key and value is not None and not value


def _refuse_choices(record: Mapping[str, Any], asked: str, column: str, said: str) -> None:
    """Raise a BadRecord if the question lacks its choices, or the answer is the number of one."""
    own = [n for n, v in record.items() if _CHOICES.fullmatch(n) and type(v) not in (int, float)]
    lettered = [name for name in _LETTERS if not is_blank(record.get(name))]
    own += lettered if lettered[:2] == ["A", "B"] else []
    names = [name for name in own if record[name]]
    for name in names:
        if not all(_is_in(text, asked) for text in _choices(record[name])):
            text = f"the column {name!r} holds choices, which the question does not: "
            raise BadRecord(UNUSED, f"{text}a --transform writes them into it (docs/data.md)")
    is_label = re.search(rf"(?:^|[\s(\[]){re.escape(said)}[.):\]](?!\d)", asked) is not None
    is_number, is_text = _NUMBER.fullmatch(said), type(record[column]) is str
    is_choice = is_text and re.search(rf"[.):\]]\s*{re.escape(said)}(?![\w.])", asked)
    found = {*_LABELS.findall(asked)}
    listed = max(len([*itertools.takewhile(found.__contains__, order)]) for order in _ORDERS)
    if is_number and listed > 1 and 0 <= float(said) <= listed and not is_choice:
        names.append(column)
    elif is_number and not is_text:
        names += own
    others = texts_of(record.get("answers")) if column == "answer" else []
    if others and said not in others and (is_number or len(said) == 1):
        names.append("answers")
    if (is_number or "answers" in names) and names and not is_label:
        text = f"{column!r} is {cut(record[column])}, the number or letter of a choice"
        raise BadRecord("bad_turn", f"{text} ({names[0]!r}): a --transform says of which one")


def _refuse_others(record: Mapping[str, Any], asked: str, column: str, said: str) -> None:
    """Raise a BadRecord if another column has another answer."""
    for name, value in record.items():
        if not holds_answer(name) or name in (column, "answers") or isinstance(value, OBJECT):
            continue
        number = type(value) in (int, float) and type(value) is type(record[column])
        texts = [str(value)] if number else [t for t in texts_of(value) if not is_blank(t)]
        if texts and not any(is_same(text, said, asked) for text in texts):
            text = f"{column!r} is {cut(record[column])} and {name!r} is {cut(value)}"
            raise BadRecord("bad_turn", f"{text}: a --transform or --ignore says which is trained")


def holds_answer(name: str) -> bool:
    """Return whether a column holds an answer, by its name."""
    return name in ANSWERS or _RIGHT.fullmatch(name) is not None


def is_same(text: str, said: str, asked: str) -> bool:
    """Return whether an answer is another one: in other spacing, its label, a choice of that label,
    or what a longer one concludes."""
    one, other = (" ".join(each.split()).casefold().rstrip(".") for each in (text, said))
    bare = {each: re.sub(r"^\(?[a-h][.):] *(?=.)", "", each) for each in (one, other)}
    for label, choice in ((one, other), (other, one)):
        own = rf"(?:^|[\s(\[]){re.escape(label)}[.):\]]\s*{re.escape(bare[choice])}(?!\w)"
        if bare[one] == bare[other] or re.search(own, f"{asked.casefold()}\n{choice}"):
            return True
    if len(one) == 1 and one.isalpha():
        return re.search(rf"(?<!\w){one}\W*$", other) is not None
    return len(other.split()) >= 3 + len(one.split()) and _is_in(one, other)


def _refuse_verdicts(record: Mapping[str, Any], column: str, said: str) -> None:
    """Raise a BadRecord if a column says that an answer is wrong, or whether a caption is right."""
    is_plain = said.strip(" .").casefold() in ("yes", "no", "true", "false")
    for name, value in record.items():
        if type(value) not in (bool, int, float, str) or not _VERDICT.fullmatch(name):
            continue
        is_answer = str(value) == said or (name == "label" and is_plain)
        wrong = (*_WRONG, "1", "true") if name == "label" and column in CAPTIONS else _WRONG
        if not is_answer and str(value).strip().casefold().removesuffix(".0") in wrong:
            text = f"the column {name!r} is {cut(value)}, which may say whether {column!r} is right"
            cure = f"a --transform leaves out what is wrong, or give --ignore {name}"
            raise BadRecord(UNUSED, f"{text}: {cure}")


def _choices(value: Any) -> list[str]:
    items = value if isinstance(value, list | tuple) else [value]
    return [str(each) for each in items if type(each) in (int, float)] + texts_of(value)


def _is_in(text: str, asked: str) -> bool:
    """Return whether a text stands in a question, whatever its case and spacing."""
    words, others = (" ".join(each.casefold().split()) for each in (text, asked))
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", others) is not None


def is_blank(value: Any) -> bool:
    """Return whether a column holds nothing."""
    return value is None or (isinstance(value, str) and value.strip() in _NOTHING)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(value)}, not text")
    return value
