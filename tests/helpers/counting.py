"""Counts as rows: what `count_columns` would write, or why there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from packidx.errors import BadRecord
from packidx.estimate.tasks import count_columns
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import Conversation, MediaInfo

Size = tuple[int, int] | None


def count_rows(
    counter: ConversationCounter, conversations: list[Conversation], sizes: list[tuple[Size, ...]]
) -> list[Any]:
    """A namespace per conversation, or its BadRecord."""
    infos = [tuple(MediaInfo(*size) if size else None for size in one) for one in sizes]
    counts = counter.count(conversations, infos)
    num = len(conversations)
    rows = count_columns(counts, range(num), num).to_pylist()
    return [counts.errors.get(i) or SimpleNamespace(**row) for i, row in enumerate(rows)]


def count_row(counter: ConversationCounter, conversation: Conversation, *sizes: Size) -> Any:
    """As `count_rows` of one; a BadRecord is returned, not raised."""
    return count_rows(counter, [conversation], [sizes])[0]


def is_row(row: Any) -> bool:
    return not isinstance(row, BadRecord)
