"""What was trained on when: the samples of a step, the steps of a sample.

Rows of the samples come from one SELECT; which pack a step takes says the order of the epoch. What
is told is plain values, which ``packidx trace --json`` prints as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Unpack

import numpy as np

from packidx.errors import FormatError, MismatchError, NotFoundInIndex, OptionError
from packidx.index.opening import open_index
from packidx.index.order import Dealing, Epochs, State, check_global_batch, check_rank
from packidx.index.reader import Index
from packidx.index.tables import StepOptions, Steps
from packidx.inspect.sql import Row, rows_of, tables_of

MOST = 100
"""Samples of one key that are told."""


class RunOptions(StepOptions, total=False):
    """All that is known of a run, each None or absent where it is not."""

    state: Mapping[str, Any] | None
    """How far the run is: `PackSampler.state_dict()` or `state_at(step)`."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The steps of a run, and how far it is."""

    steps: Steps
    global_batch_from: str | None
    world_size: int | None
    position: int | None
    """Packs consumed of the epoch, by the run's state; None without one."""

    @classmethod
    def of(cls, index: Index, **options: Unpack[RunOptions]) -> _Run:
        """Make one of what is known of a run on `index`.

        Raises:
            OptionError: values that make no sense together.
            MismatchError: the state is of another snapshot, or of another run than what is given.
            FormatError: this is not a state.
        """
        asked: dict[str, Any] = {**options}
        state, world_size = asked.pop("state", None), asked.get("world_size")
        if world_size is not None:
            check_rank(0, world_size)
        origin, position = "given" if asked.get("global_batch") else "plan", None
        if state is not None:
            read = _read(index, state)
            for name in ("seed", "epoch", "global_batch"):
                value, stated = asked.get(name), getattr(read, name)
                if value not in (None, stated):
                    raise MismatchError(
                        f"the state has {name} {stated}, and {value} is asked for: give one"
                    )
                asked[name] = stated
            origin, position = "state" if origin == "plan" else origin, read.position
        steps = Steps.of(index.snapshot, **asked)
        return cls(steps, None if steps.global_batch is None else origin, world_size, position)

    def dealing(self) -> Dealing:
        """Return how the epoch is dealt; with steps of one pack where nobody says how large one
        is."""
        steps = self.steps
        order = steps.epochs.order(steps.snapshot_id, steps.seed, steps.epoch)
        return Dealing(order, steps.global_batch or 1)


def _read(index: Index, state: Mapping[str, Any]) -> State:
    read = State.read(state)
    if read.snapshot_id != index.id:
        raise MismatchError(
            f"the state has snapshot_id {read.snapshot_id}, this index {index.id}: name the"
            " snapshot that was trained on (INDEX@ID)"
        )
    read.check_position(Epochs.of(index.snapshot).num_packs)
    return read


def _of_run(index: Index, run: _Run) -> Row:
    """Return what is told of a run in either case."""
    return {
        "snapshot_id": index.id,
        "path": index.path,
        "seed": run.steps.seed,
        "global_batch": run.steps.global_batch,
        "global_batch_from": run.global_batch_from,
        "world_size": run.world_size,
        "ancestors": ancestors(index),
    }


_OF_SAMPLE = (
    *("position", "sample_id", "source", "key", "pair"),
    *("copy", "piece", "token_start", "length", "shard", "row"),
)


def trace_step(
    index: Index,
    step: int,
    *,
    rank: int | None = None,
    **options: Unpack[RunOptions],
) -> Row:
    """Return what optimizer step `step` of an epoch trains on, 0 ≤ step < the epoch's steps.

    The packs of a rank are those that ``PackSampler(index, rank=rank, world_size=world_size,
    global_batch=global_batch, seed=seed, epoch=epoch)`` yields in that step, in that order. Only
    their rows of the index are read.

    Args:
        index: what is trained on.
        step: counted from 0 in its epoch.
        rank: whose packs; None means those of all ranks. It needs `world_size`.
        options: of the run, see `RunOptions`.

    Returns:
        ``snapshot_id``, ``path``, ``step``, ``num_steps`` (of the epoch), ``epoch``, ``seed``,
        ``global_batch``, ``global_batch_from`` (``'given'``, ``'state'`` or ``'plan'``),
        ``world_size``, ``rank``, ``consumed`` (whether the state says that all of the step is done;
        None without a state), ``ancestors``, ``steps_before`` (whole steps that training on them
        took), and ``packs``, in order of micro-steps, and of ranks within one: ``pack_id``,
        ``order_position``, ``place_in_step``, ``micro_step`` and ``rank`` (None without a world
        size), ``length``, and ``samples``: ``position`` in the pack, ``sample_id``, ``source``,
        ``key``, ``pair``, ``copy``, ``piece``, ``token_start`` (first token of the piece in its
        sample), ``length`` (of the piece), ``shard`` (path or URL of the record's file) and ``row``
        (number of the record in it).

    Raises:
        OptionError: there is no such step, or values make no sense together.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    run, name = _Run.of(index, **options), f"{index.path}@{index.id[:12]}"
    world_size, global_batch = run.world_size, run.steps.global_batch
    if rank is not None:
        if world_size is None:
            raise OptionError(f"rank {rank} of how many? Give the world size, too")
        check_rank(rank, world_size)
    if global_batch is None:
        raise OptionError(
            f"{name} has no steps of its own (random order without a global batch): give the global"
            " batch that the sampler was given"
        )
    check_global_batch(global_batch, 1, run.steps.epochs, name)
    dealing = run.dealing()
    numbers = dealing.packs_of_step(step).tolist()
    first = step * global_batch
    turns = [dealing.turn(first + at, world_size or 1) for at in range(global_batch)]
    mine = [at for at, turn in enumerate(turns) if rank is None or turn.rank == rank]
    # In order of their numbers, each row group is decoded once.
    packs = {number: index.pack(number) for number in sorted(numbers[at] for at in mine)}
    told = _of_run(index, run)
    return told | {
        "step": step,
        "num_steps": dealing.num_steps,
        "epoch": run.steps.epoch,
        "rank": rank,
        "consumed": None if run.position is None else first + global_batch <= run.position,
        "steps_before": sum(ancestor["steps"] for ancestor in told["ancestors"]),
        "packs": [
            {
                "pack_id": numbers[at],
                "order_position": first + at,
                "place_in_step": turns[at].place,
                "micro_step": None if world_size is None else turns[at].micro_step,
                "rank": None if world_size is None else turns[at].rank,
                "length": packs[numbers[at]].stats["length"],
                "samples": [
                    {name: getattr(sample, name) for name in _OF_SAMPLE}
                    | {"shard": _shard_of(index, sample.shard)}
                    for sample in packs[numbers[at]].samples
                ],
            }
            for at in mine
        ],
    }


def _shard_of(index: Index, shard: int | None) -> str | None:
    """Return where shard number `shard` is, by the index's roots; None where there is none."""
    shards = index.snapshot.shards
    if shard is None or not 0 <= shard < len(shards):
        return None
    return index.resolve(shards[shard].uri)


def trace_samples(
    index: Index,
    *,
    key: str | None = None,
    sample_id: int | None = None,
    source: str | None = None,
    **options: Unpack[RunOptions],
) -> Row:
    """Return all places of the samples of a key, or of one sample, and when they are trained on.

    Args:
        index: where they are packed; its lineage is looked through, too.
        key: of the samples; a key may be in several sources, and a preference pair has one.
        sample_id: of one sample, in place of a key.
        source: of the key.
        options: of the run, see `RunOptions`.

    Returns:
        ``snapshot_id``, ``path``, what was asked (``key``, ``sample_id``, ``source``), ``epoch``,
        ``seed``, ``global_batch``, ``global_batch_from``, ``world_size``, ``ancestors``, and
        ``samples``, none where the index knows none: ``sample_id``, ``source``, ``key``, ``pair``,
        ``shard``, ``row``, ``dropped`` (``reason``, ``detail`` and ``length`` of one in no pack),
        ``places``, in the order of training, and ``before``: ``snapshot_id`` and
        ``places`` of each ancestor that has trained on some of it, oldest first. A place has
        ``epoch``, ``pack_id``, ``position``, ``copy``, ``piece``, ``token_start``, ``length``,
        ``order_position``, ``left_out`` (behind the epoch's last whole step, which leaves it out),
        ``step``, ``place_in_step``, ``micro_step``, ``rank``, and ``consumed`` (whether training
        has had it; None without a state). The step and what follows are None where the epoch leaves
        the pack out, or nobody says how large a step is; the rank without a world size.

    Raises:
        OptionError: neither key nor sample_id is given, or both, a source that is not there, or
            more samples than can be told.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    if (key is None) == (sample_id is None):
        raise OptionError("give a key or a sample id, one of them")
    if key is None and source is not None:
        raise OptionError("a source goes with a key: a sample id is one sample's")
    names = [known.name for known in index.snapshot.sources]
    if source is not None and source not in names:
        listed = ", ".join(names[:8]) or "none by name"
        raise OptionError(f"there is no source {source!r:.80} in {index.path}: it has {listed}")
    run = _Run.of(index, **options)
    if key is None:
        rows = _rows(index, _BY_ID, ids=[sample_id])
    else:
        rows = _rows(index, _BY_KEY, key=key, source=source)
    ids = sorted({row["sample_id"] for row in rows})
    if len(ids) > MOST:
        raise OptionError(
            f"the key {key!r:.80} names {len(ids):,} samples of {index.path}@{index.id[:12]}: give "
            "the source, or a sample id"
        )
    places = _places(rows, run)
    before = _before(index, ids)
    samples = [
        _sample(index, ident, list(mine))
        | {"places": places.get(ident, []), "before": before.get(ident, [])}
        for ident, mine in groupby(rows, lambda row: int(row["sample_id"]))
    ]
    asked = {"key": key, "sample_id": sample_id, "source": source}
    return _of_run(index, run) | asked | {"epoch": run.steps.epoch, "samples": samples}


_PACKED = (
    "sample_id, copy, piece, pack_id, position, token_start, length, source, key, pair, shard, row"
)
_ROWS = (
    f"SELECT {_PACKED} FROM samples WHERE {{where}} UNION ALL BY NAME "
    "SELECT sample_id, length, source, key, reason, detail FROM dropped WHERE {where} "
    "ORDER BY sample_id, copy, piece, pack_id, position"
)
"""The pieces of samples in packs, and the samples in none, which have a reason."""
_BY_KEY = _ROWS.format(where="key = $key AND ($source IS NULL OR source = $source)")
_BY_ID = _ROWS.format(where="list_contains($ids, sample_id)")


def _rows(index: Index, query: str, **values: Any) -> list[Row]:
    """Return what a query over `samples` and `dropped` gives, by the names of its columns."""
    with tables_of({name: (index, name) for name in ("samples", "dropped")}) as connection:
        return rows_of(connection, query, **values)


def _sample(index: Index, ident: int, rows: Sequence[Row]) -> Row:
    """Return what a sample's rows say of it, those of pieces in packs first."""
    first, last = rows[0], rows[-1]
    dropped = None
    if last["reason"] is not None:
        dropped = {name: last[name] for name in ("reason", "detail", "length")}
    shard, row = first["shard"], first["row"]
    if first["pack_id"] is None:
        shard, row = _record_of(index, ident)
    known = {name: first[name] for name in ("source", "key", "pair")}
    where = {"shard": _shard_of(index, shard), "row": row}
    return {"sample_id": ident, **known, **where, "dropped": dropped}


def _record_of(index: Index, sample_id: int) -> tuple[int | None, int | None]:
    """Number of the shard and of the record in it; None where the id does not say it, as where a
    record may be the two sides of a preference pair."""
    snapshot = index.snapshot
    ends = [*accumulate(shard.rows for shard in snapshot.shards)]
    if not ends or ends[-1] != snapshot.lengths.num_samples:
        return None, None  # the lengths were nobody's shards
    number = bisect_right(ends, sample_id)  # ids are dense, in the order of the shards
    shard = snapshot.shards[number]
    layout = next(each.layout for each in snapshot.sources if each.name == shard.source)
    if layout is not None and layout.pair == "both":
        return None, None
    return number, sample_id - ends[number] + shard.rows


_OF_ROW = ("pack_id", "position", "copy", "piece", "token_start", "length")


def _places(rows: Iterable[Row], run: _Run) -> dict[int, list[Row]]:
    """Return the places of each sample, in the order of training."""
    places: dict[int, list[Row]] = {}
    packed = [row for row in rows if row["pack_id"] is not None]
    packs = np.array([row["pack_id"] for row in packed], np.int64)
    dealing = run.dealing()
    positions = dealing.order.positions(packs).tolist()
    for number in sorted(range(len(packed)), key=lambda number: positions[number]):
        at, row = positions[number], packed[number]
        is_left_out = at >= dealing.end
        has_step = run.steps.global_batch is not None and not is_left_out
        turn = dealing.turn(at, run.world_size or 1) if has_step else None
        dealt = turn if run.world_size is not None else None
        place = {
            "epoch": run.steps.epoch,
            **{name: row[name] for name in _OF_ROW},
            "order_position": at,
            "left_out": is_left_out,
            "step": turn and turn.step,
            "place_in_step": turn and turn.place,
            "micro_step": dealt and dealt.micro_step,
            "rank": dealt and dealt.rank,
            "consumed": None if run.position is None else at < run.position,
        }
        places.setdefault(row["sample_id"], []).append(place)
    return places


def ancestors(index: Index) -> list[Row]:
    """Return what `index` goes on from by its options, oldest first.

    Returns:
        ``snapshot_id``, ``seed``, ``epoch``, ``global_batch``, ``position`` (packs that were
        trained on, over all ranks), ``steps`` (whole optimizer steps of them) and ``missing`` (why
        the snapshot cannot be read; None where it can).
    """
    told = []
    for entry in index.snapshot.options.continues:
        opened = _opened_ancestor(index, entry.snapshot_id)
        names = ("snapshot_id", "seed", "epoch", "global_batch", "position")
        told.append(
            {
                **{name: getattr(entry, name) for name in names},
                "steps": entry.position // entry.global_batch,
                "missing": opened if isinstance(opened, str) else None,
            }
        )
    return told


def _opened_ancestor(index: Index, ident: str) -> Index | str:
    """Return the snapshot `ident` beside `index`, or why it cannot be read.

    Raises:
        OSError: the store cannot be asked.
    """
    try:
        return open_index(f"{index.path}@{ident}", index.roots)
    except (NotFoundInIndex, FormatError) as error:
        return str(error)


def _before(index: Index, ids: Sequence[int]) -> dict[int, list[Row]]:
    """Return what training on the ancestors has had of each sample. Their ids are the same: a plan
    is continued with the lengths that were planned."""
    told: dict[int, list[Row]] = {}
    for entry in index.snapshot.options.continues if ids else ():
        ancestor = _opened_ancestor(index, entry.snapshot_id)
        if isinstance(ancestor, str):
            continue
        steps = Steps.of(
            ancestor.snapshot,
            seed=entry.seed,
            epoch=entry.epoch,
            global_batch=entry.global_batch,
        )
        run = _Run(steps, "state", None, entry.position)
        rows = _rows(ancestor, _BY_ID, ids=ids)
        for ident, listed in _places(rows, run).items():
            if consumed := [place for place in listed if place["consumed"]]:
                had = {"snapshot_id": entry.snapshot_id, "places": consumed}
                told.setdefault(ident, []).append(had)
    return told
