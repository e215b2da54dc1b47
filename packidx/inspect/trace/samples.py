"""Where a sample is packed and when that is trained on, or why it is in no pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from packidx.errors import OptionError
from packidx.index.order import Epochs
from packidx.index.reader import Index
from packidx.inspect.places import record_of
from packidx.inspect.trace import find
from packidx.inspect.trace.results import (
    Before,
    Dropped,
    Place,
    SampleTrace,
    SampleTraces,
    ancestors,
    opened_ancestor,
)
from packidx.inspect.trace.run import Run, RunOptions, run_of
from packidx.inspect.trace.steps import shard_of


def trace_samples(
    index: Index,
    *,
    key: str | None = None,
    sample_id: int | None = None,
    source: str | None = None,
    **options: Unpack[RunOptions],
) -> SampleTraces:
    """All places of the samples of a key, or of one sample, and when they are trained on.

    Args:
        index: where they are packed; its lineage is looked through, too.
        key: of the samples; a key may be in several sources, and a preference pair has one.
        sample_id: of one sample, in place of a key.
        source: of the key.
        options: of the run, see `RunOptions`.

    Returns:
        the samples; none where the index knows none, and then keys like the one that was asked for.

    Raises:
        OptionError: neither key nor sample_id is given, or both, a source that is not there, or
            more samples than can be told.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    wanted = _wanted(index, key, sample_id, source)
    run = run_of(index, **options)
    epochs = tuple(range(len(Epochs.of(index.snapshot).variants)))
    if run.epoch is not None:
        epochs = (run.epoch,)
    rows, left_out = find.packed(index, wanted), find.dropped(index, wanted)
    places = _places(index, rows, run, epochs)
    ids = sorted({row.sample_id for row in rows} | {row.sample_id for row in left_out})
    before = _before(index, ids)
    samples = []
    for ident in ids:
        mine = [row for row in rows if row.sample_id == ident]
        why = next((row for row in left_out if row.sample_id == ident), None)
        samples.append(_sample(index, ident, mine, why, places.get(ident, ()), before))
    return SampleTraces(
        snapshot_id=index.id,
        path=index.path,
        key=key,
        sample_id=sample_id,
        source=source,
        epochs=epochs,
        seed=run.seed,
        global_batch=run.global_batch,
        global_batch_from=run.global_batch_from,
        world_size=run.world_size,
        ancestors=ancestors(index),
        samples=tuple(samples),
        near=() if samples or key is None else find.near_keys(index, key),
    )


def _wanted(
    index: Index, key: str | None, sample_id: int | None, source: str | None
) -> find.Wanted:
    """What is asked for, where that is one thing.

    Raises:
        OptionError: it is not, or there is no such source.
    """
    if (key is None) == (sample_id is None):
        raise OptionError("give a key or a sample id, one of them")
    if key is None or sample_id is not None:
        if source is not None:
            raise OptionError("a source goes with a key: a sample id is one sample's")
        return find.by_ids([sample_id or 0])
    names = [known.name for known in index.snapshot.sources]
    if source is not None and source not in names:
        listed = ", ".join(names[:8]) or "none by name"
        raise OptionError(f"there is no source {source!r:.80} in {index.path}: it has {listed}")
    return find.by_key(key, source)


def _sample(
    index: Index,
    ident: int,
    rows: Sequence[find.Found],
    left_out: find.FoundDropped | None,
    places: Sequence[Place],
    before: Mapping[int, Sequence[Before]],
) -> SampleTrace:
    known: find.Found | find.FoundDropped | None = rows[0] if rows else left_out
    first = rows[0] if rows else None
    pair = index.pack(first.pack_id).samples[first.position].pair if first else None
    where = record_of(index.snapshot, ident) if first is None else (first.shard, first.row)
    shard, row = where or (None, None)
    why = left_out and Dropped(left_out.reason, left_out.detail, left_out.length)
    return SampleTrace(
        sample_id=ident,
        source=None if known is None else known.source,
        key=None if known is None else known.key,
        pair=pair,
        shard=shard_of(index, shard),
        row=row,
        dropped=why,
        places=tuple(places),
        before=tuple(before.get(ident, ())),
    )


def _places(
    index: Index, rows: Sequence[find.Found], run: Run, epochs: Sequence[int]
) -> dict[int, list[Place]]:
    """The places of each sample, by epoch and in the order of training."""
    places: dict[int, list[Place]] = {}
    packs = np.array([row.pack_id for row in rows], np.int64)
    for epoch in epochs:
        dealing = run.dealing(index, epoch)
        positions = dealing.order.positions(packs).tolist()
        pairs = zip(positions, rows, strict=True)
        for at, row in sorted(pair for pair in pairs if pair[0] >= 0):
            is_left_out = at >= dealing.end
            has_step = run.global_batch is not None and not is_left_out
            turn = dealing.turn(at, run.world_size or 1) if has_step else None
            is_dealt = turn is not None and run.world_size is not None
            places.setdefault(row.sample_id, []).append(
                Place(
                    epoch=epoch,
                    pack_id=row.pack_id,
                    position=row.position,
                    copy=row.copy,
                    piece=row.piece,
                    token_start=row.token_start,
                    length=row.length,
                    order_position=at,
                    left_out=is_left_out,
                    step=turn and turn.step,
                    place_in_step=turn and turn.place,
                    micro_step=turn.micro_step if turn and is_dealt else None,
                    rank=turn.rank if turn and is_dealt else None,
                    consumed=None if run.position is None else at < run.position,
                )
            )
    return places


def _before(index: Index, ids: Sequence[int]) -> dict[int, list[Before]]:
    """What training on the ancestors has had of each sample. Their ids are the same: a plan is
    continued with the lengths that were planned."""
    told: dict[int, list[Before]] = {}
    for entry in index.snapshot.options.continues if ids else ():
        ancestor = opened_ancestor(index, entry.snapshot_id)
        if isinstance(ancestor, str):
            continue
        batch = entry.global_batch
        run = Run(entry.seed, entry.epoch, batch, "state", None, entry.position)
        places = _places(ancestor, find.packed(ancestor, find.by_ids(ids)), run, [entry.epoch])
        for ident, listed in places.items():
            consumed = tuple(place for place in listed if place.consumed)
            if consumed:
                told.setdefault(ident, []).append(Before(entry.snapshot_id, consumed))
    return told
