"""Records that hold their tokens already: ``input_ids``, and ``labels`` if not all are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.media.references import MAX_TOKENS, cut, integer, named

IGNORED = -100
"""The label of a position that is not trained on."""


def tokens_of(record: Mapping[str, Any]) -> Conversation | None:
    """The record's tokens as a conversation without turns, or None where it has none.

    Lists, tuples, NumPy arrays and Arrow lists of integers are taken.

    Raises:
        BadRecord: ``bad_input_ids`` or ``bad_labels``.
    """
    ids = record.get("input_ids")
    if ids is None:
        return None
    tokens = _checked(ids, "input_ids", 0)
    stated = record.get("labels")
    labels = None if stated is None else _checked(stated, "labels", IGNORED)
    if labels is not None and len(labels) != len(tokens):
        text = f"{len(labels)} labels for {len(tokens)} input_ids"
        raise BadRecord("bad_labels", text)
    count = integer(record.get("_text_tokens"), 0, MAX_TOKENS, "_text_tokens", "bad_text_tokens")
    return Conversation((), count, input_ids=tokens, labels=labels)


def _checked(value: Any, name: str, low: int) -> list[int]:
    reason = f"bad_{name}"
    if hasattr(value, "as_py"):
        value = value.as_py()
    elif hasattr(value, "to_pylist"):
        value = value.to_pylist()
    if not isinstance(value, list | tuple | np.ndarray):
        raise BadRecord(reason, f"{name!r} is {named(value)}, not a list of integers")
    if len(value) == 0:
        raise BadRecord(reason, f"{name!r} is empty")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.empty((), object)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadRecord(reason, f"{name!r} is {cut(value)}, not a list of integers")
    # A boolean among integers is one to NumPy, and no token.
    if type(value) is not np.ndarray and any(type(item) is bool for item in value):
        raise BadRecord(reason, f"{name!r} holds a boolean")
    wrong = (array < 0) & (array != low) if low < 0 else array < 0
    wrong |= array > MAX_TOKENS
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise BadRecord(reason, f"{name!r} holds {array[at]} at {at}, which is no token")
    tokens: list[int] = array.tolist()
    return tokens
