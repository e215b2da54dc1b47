"""Lengths as rows: what `count_columns` would write, and as `estimate` counts and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from packidx.encode.media import info_of
from packidx.errors import BadRecord
from packidx.estimate.compare import Comparer
from packidx.estimate.tasks import count_columns
from packidx.format.manifest import Compared
from packidx.processor.assemble import ProcessorFiles
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


class Length(NamedTuple):
    """A record's length."""

    tokens: int
    is_exact: bool
    is_built: bool


def lengths(
    files: ProcessorFiles, talks: Sequence[Conversation], computed: Sequence[str] = ()
) -> list[Length | BadRecord]:
    """Return the lengths of records whose media are opened, one after the other.

    Args:
        computed: kinds that were compared before, and are counted by rules.
    """
    comparer = Comparer(files, Compared(by="transformers", computed=tuple(computed)))
    rules = ConversationCounter(files)
    counted: list[Length | BadRecord] = []
    for talk in talks:
        infos = [info_of(medium) for medium in talk.media]
        try:
            kind = comparer.kind_of(talk, infos)
            built = comparer.build(talk, kind) if comparer.needs(kind) else None
        except BadRecord as error:
            counted.append(error)
            continue
        if built is not None:
            counted.append(Length(len(built["input_ids"]), True, True))
            continue
        counts = rules.count([talk], [infos])
        is_exact = comparer.is_exact(kind) and int(counts.method[0]) == 0
        length = Length(int(counts.length[0]), is_exact, False)
        counted.append(counts.errors.get(0, length))
    return counted
