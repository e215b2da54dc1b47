"""The snapshots that a plan goes on from, and what training on them had."""

from __future__ import annotations

from packidx.errors import FormatError, NotFoundInIndex
from packidx.index.opening import open_index
from packidx.index.reader import Index
from packidx.inspect.trace.results import Ancestor


def ancestors(index: Index) -> tuple[Ancestor, ...]:
    """What `index` goes on from by its options, oldest first."""
    told = []
    for entry in index.snapshot.options.continues:
        opened = opened_ancestor(index, entry.snapshot_id)
        told.append(
            Ancestor(
                snapshot_id=entry.snapshot_id,
                seed=entry.seed,
                epoch=entry.epoch,
                global_batch=entry.global_batch,
                position=entry.position,
                steps=entry.position // entry.global_batch,
                missing=opened if isinstance(opened, str) else None,
            )
        )
    return tuple(told)


def opened_ancestor(index: Index, ident: str) -> Index | str:
    """The snapshot `ident` beside `index`, or why it cannot be read.

    Raises:
        OSError: the store cannot be asked.
    """
    try:
        return open_index(f"{index.path}@{ident}", index.roots)
    except (NotFoundInIndex, FormatError) as error:
        return str(error)
