"""Read JSON, and refuse a document that names a key twice."""

from __future__ import annotations

import json
from typing import Any


def load_json(data: bytes | str) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: it is not valid, nested too deeply, holds NaN or names a key twice.
    """
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.80} stands twice in one object: keep one")
    return value


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")
