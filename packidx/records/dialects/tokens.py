"""Token ids: a record that was tokenized before."""

from __future__ import annotations

from typing import Any

import numpy as np

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.references import MAX_TOKENS, cut, named

IGNORED = -100
"""The label of a position that is not trained on."""


class TokenIds:
    """``input_ids``, and ``labels`` where not all of them are trained on.

    Lists, tuples, NumPy arrays and Arrow lists of integers are taken.
    """

    name = "tokens"
    columns = frozenset(("input_ids", "labels"))

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        ids = raw.columns.get("input_ids")
        if ids is None:
            return None
        tokens = _checked(ids, "input_ids", 0)
        stated = raw.columns.get("labels")
        labels = None if stated is None else _checked(stated, "labels", IGNORED)
        if labels is not None and len(labels) != len(tokens):
            text = f"{len(labels)} labels for {len(tokens)} input_ids"
            raise BadRecord("bad_labels", text)
        return Conversation((), raw.text_tokens, input_ids=tokens, labels=labels)


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
        raise BadRecord(reason, f"{name!r} holds {array[at]} at {at}, which is not a token")
    tokens: list[int] = array.tolist()
    return tokens
