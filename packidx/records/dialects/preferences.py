"""Preference data, told by its shape: pairs of answers, and answers with a verdict.

A pack trains on one answer. Of a pair nobody has said which; of answers with a verdict some are the
ones not to give. Counted as they stand, such records train on nothing, or on what was meant to be
avoided. The forms are those that the trainers document: TRL's and LLaMA-Factory's ``chosen`` and
``rejected``, with or without a prompt; ms-swift's ``rejected_response`` beside the messages; TRL's
and ms-swift's ``label`` and LLaMA-Factory's ``kto_tag`` of single answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.layout import TURN_KEYS
from packidx.records.media.references import OBJECT

BESIDE = ("rejected_response", "rejected_messages")
"""Columns of an answer to avoid, beside a record that has the other one as its own."""
_WORDS = {"true": True, "false": False}
_KEYS = frozenset(("rejected", "kto_tag", "label", *BESIDE))


def refuse_preferences(record: Mapping[str, Any]) -> None:
    """Nothing, for a record that says itself what is trained on.

    Raises:
        BadRecord: ``preference_data``.
    """
    if _KEYS.isdisjoint(record.keys()):
        return
    if is_answer(record.get("chosen")) and is_answer(record.get("rejected")):
        raise _refusal(
            "a pair of answers in 'chosen' and 'rejected'",
            "take one side, --pair chosen",
        )
    if is_answer(record.get("rejected")) and is_answer(record.get("response")) and _turns(record):
        raise _refusal(
            "an answer and one to avoid, in 'rejected', beside turns that hold neither",
            "put the answer behind the turns in the file, and leave 'rejected' out",
        )
    for name in BESIDE:
        if is_answer(record.get(name)):
            raise _refusal(f"an answer to avoid in {name!r}", "take one side, --pair chosen")
    if _verdict(record.get("kto_tag")) is not None:
        raise _refusal(
            "a verdict on its answer in 'kto_tag'", "keep the records to train on, without it"
        )
    asked_and_said = is_answer(record.get("prompt")) and is_answer(record.get("completion"))
    verdict = _verdict(record.get("label"))
    if asked_and_said and verdict is not None:
        raise _refusal(
            "a verdict on its 'completion' in 'label'", "keep the records to train on, without it"
        )
    if verdict is False and type(record.get("label")) is not int:
        raise _refusal(
            "the verdict false on its answer in 'label' (ms-swift's KTO)",
            "leave the record out, or, where 'label' says something else, that column",
        )


def has_pair(record: Mapping[str, Any]) -> bool:
    """Whether a record has two answers, one of which is better."""
    if any(is_answer(record.get(name)) for name in BESIDE):
        return True
    return is_answer(record.get("chosen")) and is_answer(record.get("rejected"))


def _turns(record: Mapping[str, Any]) -> bool:
    return any(is_answer(record.get(key)) for key in TURN_KEYS)


def _verdict(value: Any) -> bool | None:
    """Whether an answer is a good one, as JSON, numbers and the cells of tables say it."""
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def is_answer(value: Any) -> bool:
    """Whether `value` is text, a turn or turns, and not a flag, a number or an empty cell."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, (str, *OBJECT)) for item in value)
    return bool(value) and isinstance(value, (str, *OBJECT))


def _refusal(has: str, cure: str) -> BadRecord:
    text = f"the record has {has}, and a pack needs to know which answer to train on: {cure}"
    return BadRecord("preference_data", text)
