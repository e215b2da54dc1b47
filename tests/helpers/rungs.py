"""Lengths as `estimate` counts them: by rules that are compared once per kind, or built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packidx.encode.media import info_of
from packidx.errors import BadRecord
from packidx.estimate.compare import Comparer
from packidx.format.manifest import Compared
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import Conversation


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
