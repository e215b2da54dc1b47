"""Questions and answers in columns of their own.

- A question is a text, and what stands beside it (``input``, ``query``) is joined by a newline, as
  LLaMA-Factory does; TRL's ``prompt`` and ``completion`` may be messages.
- An answer is a text as it stands, also where that is JSON, or a number. A list of equal answers is
  that answer; different ones are refused, unless the layout takes the first.
- Refused are choices that the question does not hold, numbers of choices (one record does not say
  whether they count from 0 or 1), and an answer beside a column that has another one, or that says
  it is wrong.

Example: ``{"question": "A. red B. blue", "answer": "B", "choices": ["red", "blue"]}`` is read, as
both choices stand in the question. With ``"answer": 1`` it is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Turn
from packidx.records.dialects.messages import CHAT_COLUMNS, chat, read_turns, standard_message
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.layout import CAPTIONS, UNUSED
from packidx.records.media.held import texts_of
from packidx.records.media.references import OBJECT, cut, named, refuse_rounded, role_of

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
_LISTED = ("answer", "answers")  # which may hold several
_ASKING = ("user", "human", "system")
_BESIDE = ("answer_confidence", "answer_type", "raw_answer", "question_id", "id")
"""Texts beside an answer, in VQA, VizWiz and OK-VQA."""
_NOTHING = ("", "nan", "NaN")
"""Cells that tables have in place of nothing."""

_CHOICES = re.compile(
    r"(?i:(?:\w+[_ ])?(?:choice|option|candidate|ending|distractor|alternative)s?"
    r"(?:[_ ]?(?:[a-h]|\d+|texts?|list))?|(?:possible|candidate|incorrect|wrong)[_ ]answers?)"
)
_LETTERS = tuple("ABCDEFGH")
_LABEL = re.compile(r"(?:^|[\s(\[])([A-Ha-h0-8]|[iv]{1,4}|[IV]{1,4})[.):\]](?!\d)")
_SECOND = frozenset(("B", "b", "II", "ii", "1", "2"))
_RIGHT = re.compile(
    r"(?i:(?:correct|gold|gt|true|right|ground[_ ]?truth)[_ ]?(?:answer|option|choice|response)s?"
    r"(?:[_ ](?:text|letter))?|ground[_ ]?truth|gt|gold)"
)
_VERDICT = re.compile(r"(?i:(?:is|answer)?_?(?:is_)?(?:correct|positive|right|true)|label)")
_WRONG = ("0", "false", "incorrect", "wrong")
_NUMBER = re.compile(r"-?\d{1,3}(?:\.0)?")


class QuestionAnswer:
    """A question and its answer, in columns of these names."""

    def __init__(self, question: str, beside: str | None, answer: str) -> None:
        self.name = f"{question}, {answer}"
        self._names = question, beside, answer
        self.columns = CHAT_COLUMNS | {question, beside or question, answer, "history"}

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        question, beside, answer = self._names
        record = raw.columns
        asked, said = record.get(question), record.get(answer)
        if asked is None or said is None:
            return None
        if not (isinstance(asked, str) and isinstance(said, str)):
            prompt, completion = _messages(raw, asked, "user"), _messages(raw, said, "assistant")
            if prompt is not None and completion is not None:
                turns = [  # TRL's trainer does not train on answers that the prompt holds
                    turn if turn.role in ("user", "system") else replace(turn, train=False)
                    for turn in read_turns(raw, prompt)
                ]
                return chat(raw, turns + read_turns(raw, completion))
        texts = [asked, record.get(beside) if beside else None]
        asked = "\n".join(_text(text, question) for text in texts if text not in (None, ""))
        is_first = raw.layout.answers == "first"
        said = answer_text(said, answer, is_first=is_first)
        refuse_choices(record, asked, answer, said)
        refuse_others(record, asked, answer, said)
        refuse_verdicts(record, answer, said)
        pairs = [*_history(record.get("history")), (asked, said)]
        roles = ("user", "assistant")
        return chat(
            raw, [Turn(r, raw.split(t)) for pair in pairs for r, t in zip(roles, pair, strict=True)]
        )


QUESTIONS = frozenset(form[0] for form in FORMS)
"""Columns of a question."""


def _messages(raw: RawRecord, value: Any, role: str) -> list[Any] | None:
    """Return a prompt or a completion as messages; None if it is neither text nor messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    messages = [value] if isinstance(value, OBJECT) else value
    if not isinstance(messages, list | tuple) or not messages:
        return None
    named_so = (role_of(standard_message(each, raw.layout)) is not None for each in messages)
    return [dict(each) for each in messages] if all(named_so) else None


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


def answer_text(value: Any, name: str, *, is_first: bool = False) -> str:
    """Return an answer as text.

    Args:
        value: in the column `name`.
        is_first: take the first of several answers.

    Raises:
        BadRecord: ``bad_turn``, there is none, or there are several that differ.
    """
    if name in _LISTED and not isinstance(value, str):
        value = _one_of(value, name, is_first)
    elif name == "answers" and (value[:1], value.rstrip()[-1:]) in (("[", "]"), ("{", "}")):
        text = f"{name!r} is {cut(value)}, a text that may be a list of answers"
        raise BadRecord("bad_turn", f"{text}: name it 'answer' if it is one, or use a --transform")
    refuse_rounded(value, name)
    is_number = type(value) in (int, float) and math.isfinite(value)
    text = str(value) if is_number else _text(value, name)
    if text.strip() in _NOTHING:
        raise BadRecord("bad_turn", f"{name!r} is {text!r}, no answer: a --transform leaves it out")
    return text


def _one_of(value: Any, name: str, is_first: bool) -> Any:
    """Return the answer of a list of equal ones; also from objects, as VQA and SQuAD have them."""
    if isinstance(value, OBJECT):
        key = "answer" if "answer" in value else "text"
        further = [k for k, v in value.items() if v and k != key and k not in _BESIDE]
        is_wrong = ("correct" in k and v is not None and not v for k, v in value.items())
        if any(texts_of(value[k]) for k in further) or any(is_wrong):
            text = f"{name!r} is {cut(dict(value))}, which says more than an answer"
            raise BadRecord("bad_turn", f"{text}: a --transform says what is meant")
        value = value.get(key)
    if not isinstance(value, list | tuple):
        return value
    answers = [_one_of(item, name, is_first) for item in value if item not in (None, "")]
    if not answers:
        raise BadRecord("bad_turn", f"{name!r} is empty: the question has no answer")
    if not is_first and any(repr(each) != repr(answers[0]) for each in answers):
        several = f"{name!r} has different answers, {cut(answers)}"
        raise BadRecord("bad_turn", f"{several}: --answers first or a --transform says which")
    return answers[0]


# -- columns that change what an answer means ------------------------------------------------------


def refuse_choices(record: Mapping[str, Any], asked: str, column: str, said: str) -> None:
    """Raise a BadRecord if the question lacks its choices, or the answer is the number of one."""
    own = [n for n, v in record.items() if _CHOICES.fullmatch(n) and type(v) not in (int, float)]
    lettered = [name for name in _LETTERS if not is_blank(record.get(name))]
    own += lettered if lettered[:2] == ["A", "B"] else []
    names = [name for name in own if record[name]]
    for name in names:
        if not all(is_in(text, asked) for text in _choices(record[name])):
            text = f"the column {name!r} holds choices, which the question does not: "
            raise BadRecord(UNUSED, f"{text}a --transform writes them into it (docs/data.md)")
    labels, is_text = {*_LABEL.findall(asked)}, type(record[column]) is str
    is_number = _NUMBER.fullmatch(said) is not None
    is_choice = is_text and re.search(rf"[.):\]]\s*{re.escape(said)}(?![\w.])", asked)
    is_listed = len(labels) > 1 and not labels.isdisjoint(_SECOND)
    if is_number and is_listed and 0 <= float(said) <= len(labels) and not is_choice:
        names.append(column)
    elif is_number and not is_text:
        names += own
    others = texts_of(record.get("answers")) if column == "answer" else []
    if others and said not in others and (is_number or len(said) == 1):
        names.append("answers")
    if (is_number or "answers" in names) and names and said not in labels:
        text = f"{column!r} is {cut(record[column])}, the number or letter of a choice"
        raise BadRecord("bad_turn", f"{text} ({names[0]!r}): a --transform says of which one")


def _choices(value: Any) -> list[str]:
    items = value if isinstance(value, list | tuple) else [value]
    return [str(each) for each in items if type(each) in (int, float)] + texts_of(value)


def refuse_others(record: Mapping[str, Any], asked: str, column: str, said: str) -> None:
    """Raise a BadRecord if another column has another answer."""
    for name, value in record.items():
        if not holds_answer(name) or name in (column, "answers") or isinstance(value, OBJECT):
            continue
        number = type(value) in (int, float) and type(value) is type(record[column])
        texts = [str(value)] if number else [t for t in texts_of(value) if not is_blank(t)]
        if texts and not any(is_same(text, said, asked) for text in texts):
            text = f"{column!r} is {cut(record[column])} and {name!r} is {cut(value)}"
            raise BadRecord("bad_turn", f"{text}: a --transform or --ignore says which is trained")


def refuse_verdicts(record: Mapping[str, Any], column: str, said: str) -> None:
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


def holds_answer(name: str) -> bool:
    """Return True if a column holds an answer, by its name."""
    return name in ANSWERS or _RIGHT.fullmatch(name) is not None


def is_same(text: str, said: str, asked: str) -> bool:
    """Return True if an answer is another one: in other spacing, its label, a choice of that label,
    or the conclusion of a longer one."""
    one, other = (" ".join(each.split()).casefold().rstrip(".") for each in (text, said))
    bare = {each: re.sub(r"^\(?[a-h][.):] *(?=.)", "", each) for each in (one, other)}
    for label, choice in ((one, other), (other, one)):
        own = rf"(?:^|[\s(\[]){re.escape(label)}[.):\]]\s*{re.escape(bare[choice])}(?!\w)"
        if bare[one] == bare[other] or re.search(own, f"{asked.casefold()}\n{choice}"):
            return True
    if len(one) == 1 and one.isalpha():
        return re.search(rf"(?<!\w){one}\W*$", other) is not None
    return len(other.split()) >= 3 + len(one.split()) and is_in(one, other)


def is_in(text: str, asked: str) -> bool:
    """Return True if a text stands in another one, in any case and spacing."""
    words, others = (" ".join(each.casefold().split()) for each in (text, asked))
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", others) is not None


def is_blank(value: Any) -> bool:
    """Return True if a column holds nothing."""
    return value is None or (isinstance(value, str) and value.strip() in _NOTHING)
