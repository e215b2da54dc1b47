"""Two queries over `steps` and `samples`: the samples of a step, and the steps of a sample.

A step's packs are known from the keyed order, so only their rows are read. Results are plain
values, which ``packidx trace --json`` prints as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Unpack

import numpy as np

from packidx.errors import MismatchError, NotFoundInIndex, OptionError
from packidx.index import Index
from packidx.index.order import Dealing, Epochs, State, check_global_batch, check_rank
from packidx.index.tables import StepOptions, Steps
from packidx.inspect.sql import Row, rows_of, tables_of

_OF_SAMPLE = (
    *("position", "sample_id", "source", "key"),
    *("copy", "piece", "token_start", "length", "shard", "row"),
)
_WHERE = "WHERE sample_id = $sample_id OR (key = $key AND coalesce(source = $source, true))"
_PLACES = f"SELECT pack_id, {', '.join(_OF_SAMPLE)} FROM samples {_WHERE} ORDER BY ALL"
_DROPPED = f"SELECT sample_id, source, key, reason, detail, length FROM dropped {_WHERE} ORDER BY 1"


class RunOptions(StepOptions, total=False):
    """Options of a training run. None or absent means as planned."""

    state: Mapping[str, Any] | None
    """`PackSampler.state_dict()` or `state_at(step)`: seed, epoch, global batch and position."""


def _run(index: Index, options: RunOptions) -> tuple[Steps, int | None]:
    """Return the steps of a run and the number of packs consumed, None without a state."""
    asked: dict[str, Any] = {**options}
    state = asked.pop("state", None)
    check_rank(0, asked.get("world_size") or 1)
    if state is None:
        return Steps.of(index.snapshot, **asked), None
    read = State.read(state)
    for name in ("snapshot_id", "seed", "epoch", "global_batch"):
        given = index.id if name == "snapshot_id" else asked.get(name)
        if given not in (None, stated := getattr(read, name)):
            hint = "name the snapshot (INDEX@ID)" if name == "snapshot_id" else "give one"
            raise MismatchError(f"the state has {name} {stated}, and {given} is given: {hint}")
        if name != "snapshot_id":
            asked[name] = stated
    read.check_position(Epochs.of(index.snapshot).num_packs)
    return Steps.of(index.snapshot, **asked), read.position


def _dealing(steps: Steps) -> Dealing:
    order = steps.epochs.order(steps.snapshot_id, steps.seed, steps.epoch)
    return Dealing(order, steps.global_batch or 1)


def _of_run(index: Index, steps: Steps, options: RunOptions) -> Row:
    run = {"seed": steps.seed, "global_batch": steps.global_batch}
    world_size = options.get("world_size")
    return {"snapshot_id": index.id, "path": index.path, **run, "world_size": world_size}


def _place(dealing: Dealing, at: int, world_size: int | None) -> Row:
    """Return the step, and the micro-step and rank if `world_size` is known, of a position."""
    step, place = divmod(at, dealing.global_batch)
    micro_step, rank = (None, None) if world_size is None else divmod(place, world_size)
    return {"step": step, "micro_step": micro_step, "rank": rank}


def _shard_of(index: Index, shard: int | None) -> str | None:
    return None if shard is None else index.resolve(index.snapshot.shards[shard].uri)


def trace_step(
    index: Index, step: int, *, rank: int | None = None, **options: Unpack[RunOptions]
) -> Row:
    """Return the samples that optimizer step `step` of an epoch trains on.

    The packs of a rank are those that `PackSampler` yields in that step, in that order.

    Args:
        index: a snapshot.
        step: counted from 0 in its epoch.
        rank: whose packs; None means all ranks. It needs `world_size`.
        options: see `RunOptions`.

    Returns:
        ``snapshot_id``, ``path``, ``seed``, ``global_batch``, ``world_size``, ``rank``, ``epoch``,
        ``step``, ``num_steps``, ``consumed`` (True if the state is behind the step; None without a
        state), and ``packs``: ``pack_id``, ``step``, ``micro_step`` and ``rank`` (None without a
        world size), ``length``, and ``samples``: ``position``, ``sample_id``, ``source``, ``key``,
        ``copy``, ``piece``, ``token_start``, ``length``, ``shard`` (its path), ``row``.

    Raises:
        OptionError: there is no such step, or values contradict each other.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    steps, position = _run(index, options)
    world_size, global_batch = options.get("world_size"), steps.global_batch
    if rank is not None:
        if world_size is None:
            raise OptionError("rank needs world_size")
        check_rank(rank, world_size)
    if global_batch is None:
        raise OptionError(f"{index.path} has no planned steps: give the global batch")
    check_global_batch(global_batch, 1, steps.epochs, index.path)
    dealing = _dealing(steps)
    packs = [
        {"pack_id": number, **_place(dealing, at, world_size)}
        for at, number in enumerate(dealing.packs_of_step(step).tolist(), step * global_batch)
    ]
    packs = [pack for pack in packs if rank in (None, pack["rank"])]
    for pack in sorted(packs, key=itemgetter("pack_id")):  # decodes each row group once
        found = index.pack(pack["pack_id"])
        pack["length"] = found.stats["length"]
        pack["samples"] = [
            {name: getattr(sample, name) for name in _OF_SAMPLE}
            | {"shard": _shard_of(index, sample.shard)}
            for sample in found.samples
        ]
    consumed = None if position is None else (step + 1) * global_batch <= position
    of_step = {"step": step, "num_steps": dealing.num_steps, "consumed": consumed}
    return _of_run(index, steps, options) | {
        "rank": rank,
        "epoch": steps.epoch,
        **of_step,
        "packs": packs,
    }


def trace_samples(
    index: Index,
    *,
    key: str | None = None,
    sample_id: int | None = None,
    source: str | None = None,
    **options: Unpack[RunOptions],
) -> Row:
    """Return where the samples of a key, or one sample, are packed, and when they are trained on.

    Args:
        index: a snapshot.
        key: of the samples; several sources may have it.
        sample_id: of one sample, in place of a key.
        source: of the key.
        options: see `RunOptions`.

    Returns:
        ``snapshot_id``, ``path``, ``seed``, ``global_batch``, ``world_size``, ``places`` in the
        order of training, and ``dropped`` (``sample_id``, ``source``, ``key``, ``reason``,
        ``detail``, ``length``). A place has ``epoch``, ``step`` (None if the epoch leaves the pack
        out, or the global batch is unknown), ``micro_step``, ``rank``, ``order_position``,
        ``pack_id``, the fields of a sample of `trace_step`, and ``consumed``.

    Raises:
        OptionError: not exactly one of `key` and `sample_id`, or values contradict each other.
        NotFoundInIndex: no sample is called so.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    if (key is None) == (sample_id is None):
        raise OptionError("give either a key or a sample id")
    steps, position = _run(index, options)
    asked = {"key": key, "sample_id": sample_id, "source": source}
    with tables_of({name: (index, name) for name in ("samples", "dropped")}) as connection:
        found, dropped = (rows_of(connection, query, **asked) for query in (_PLACES, _DROPPED))
    if not found and not dropped:
        named = ", ".join(
            f"{name} {value!r:.200}" for name, value in asked.items() if value is not None
        )
        number = index.snapshot.lengths.num_samples
        raise NotFoundInIndex(
            f"{index.path}@{index.id[:12]} has no {named}: it has {number} samples"
        )
    places = []
    packs = np.array([row["pack_id"] for row in found], np.int64)
    dealing = _dealing(steps)
    for at, row in zip(dealing.order.positions(packs).tolist(), found, strict=True):
        place = dict.fromkeys(("step", "micro_step", "rank"))
        if steps.global_batch is not None and at < dealing.end:
            place = _place(dealing, at, options.get("world_size"))
        known = {"order_position": at, "consumed": None if position is None else at < position}
        shard = {"shard": _shard_of(index, row["shard"])}
        places.append({"epoch": steps.epoch, **place, **known, **row, **shard})
    places.sort(key=itemgetter("order_position"))
    return _of_run(index, steps, options) | {"places": places, "dropped": dropped}
