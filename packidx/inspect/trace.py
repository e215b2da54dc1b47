"""Two queries over `steps` and `samples`: the samples of a step, and the steps of a sample.

A step's packs are known from the keyed order, so only their rows are read. Results are plain
values, which ``packidx trace --json`` prints as they are.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Unpack

import numpy as np

from packidx.errors import NotFoundInIndex, OptionError
from packidx.index import Index
from packidx.index.order import StepOptions, Steps, check_rank
from packidx.inspect.sql import Row, rows_of, tables_of

_OF_SAMPLE = (
    *("position", "sample_id", "source", "key"),
    *("copy", "piece", "token_start", "length", "shard", "row"),
)
_WHERE = "WHERE sample_id = $sample_id OR (key = $key AND coalesce(source = $source, true))"
_PLACES = f"SELECT pack_id, {', '.join(_OF_SAMPLE)} FROM samples {_WHERE} ORDER BY ALL"
_DROPPED = f"SELECT sample_id, source, key, reason, detail, length FROM dropped {_WHERE} ORDER BY 1"


def _snapshot_facts(index: Index, steps: Steps, world_size: int | None) -> Row:
    of_steps = {"seed": steps.seed, "global_batch": steps.global_batch, "world_size": world_size}
    return {"snapshot_id": index.id, "path": index.path, **of_steps}


def _locate_position(steps: Steps, at: int, world_size: int | None) -> Row:
    """Return the step, and with a world size the micro-step and rank, of an order position."""
    place: Row = dict.fromkeys(("step", "micro_step", "rank"))
    if steps.global_batch is not None and at < steps.dealing.end:
        place["step"], within = divmod(at, steps.global_batch)
        if world_size:
            place["micro_step"], place["rank"] = divmod(within, world_size)
    return place


def _add_shard(index: Index, row: Row) -> Row:
    """Return `row` with the path of its shard."""
    shard = row["shard"]
    path = None if shard is None else index.resolve(index.snapshot.shards[shard].uri)
    return row | {"shard": path}


def trace_step(
    index: Index, step: int, *, rank: int | None = None, **options: Unpack[StepOptions]
) -> Row:
    """Return the samples that optimizer step `step` of an epoch trains on.

    The packs of a rank are those that `PackSampler` yields in that step, in that order.

    Args:
        index: a snapshot.
        step: counted from 0 in its epoch.
        rank: whose packs; None means all ranks. It needs `world_size`.
        options: see `StepOptions`.

    Returns:
        ``snapshot_id``, ``path``, ``seed``, ``global_batch``, ``world_size``, ``rank``, ``epoch``,
        ``step``, ``num_steps``, and ``packs``: ``pack_id``, ``step``, ``micro_step`` and ``rank``
        (None without a world size), ``length``, and ``samples``: ``position``, ``sample_id``,
        ``source``, ``key``, ``copy``, ``piece``, ``token_start``, ``length``, ``shard`` (its path),
        ``row``.

    Raises:
        OptionError: there is no such step, or values contradict each other.
        FormatError: a file is missing or damaged.
    """
    steps, world_size = Steps.of(index.snapshot, **options), options.get("world_size")
    if rank is not None:
        if world_size is None:
            raise OptionError("rank needs world_size")
        check_rank(rank, world_size)
    if steps.global_batch is None:
        raise OptionError(f"{index.path} has no planned steps: give the global batch")
    numbers = enumerate(steps.dealing.packs_of_step(step).tolist(), step * steps.global_batch)
    packs = [
        {"pack_id": number, **_locate_position(steps, at, world_size)} for at, number in numbers
    ]
    packs = [pack for pack in packs if rank in (None, pack["rank"])]
    for pack in sorted(packs, key=itemgetter("pack_id")):  # decodes each row group once
        found = index.pack(pack["pack_id"])
        rows = [{name: getattr(each, name) for name in _OF_SAMPLE} for each in found.samples]
        pack |= {
            "length": found.stats["length"],
            "samples": [_add_shard(index, row) for row in rows],
        }
    of_step = {"step": step, "num_steps": steps.dealing.num_steps, "packs": packs}
    return _snapshot_facts(index, steps, world_size) | {
        "rank": rank,
        "epoch": steps.epoch,
        **of_step,
    }


def trace_samples(
    index: Index,
    *,
    key: str | None = None,
    sample_id: int | None = None,
    source: str | None = None,
    **options: Unpack[StepOptions],
) -> Row:
    """Return where the samples of a key, or one sample, are packed, and when they are trained on.

    Args:
        index: a snapshot.
        key: of the samples; several sources may have it.
        sample_id: of one sample, in place of a key.
        source: of the key.
        options: see `StepOptions`.

    Returns:
        ``snapshot_id``, ``path``, ``seed``, ``global_batch``, ``world_size``, ``places`` in the
        order of training, and ``dropped`` (``sample_id``, ``source``, ``key``, ``reason``,
        ``detail``, ``length``). A place has ``epoch``, ``step`` (None if the epoch leaves the pack
        out, or the global batch is unknown), ``micro_step``, ``rank``, ``order_position``,
        ``pack_id``, and the fields of a sample of `trace_step`.

    Raises:
        OptionError: not exactly one of `key` and `sample_id`, or values contradict each other.
        NotFoundInIndex: no sample is called so.
        FormatError: a file is missing or damaged.
    """
    if (key is None) == (sample_id is None):
        raise OptionError("give either a key or a sample id")
    asked: dict[str, Any] = {"key": key, "sample_id": sample_id, "source": source}
    steps, world_size = Steps.of(index.snapshot, **options), options.get("world_size")
    with tables_of({name: (index, name) for name in ("samples", "dropped")}) as connection:
        found, dropped = (rows_of(connection, query, **asked) for query in (_PLACES, _DROPPED))
    if not found and not dropped:
        named = ", ".join(f"{name} {v!r:.200}" for name, v in asked.items() if v is not None)
        number = index.snapshot.lengths.num_samples
        raise NotFoundInIndex(
            f"{index.path}@{index.id[:12]} has no {named}: it has {number} samples"
        )
    packs = np.array([row["pack_id"] for row in found], np.int64)
    at_of = zip(steps.dealing.order.positions(packs).tolist(), found, strict=True)
    places = [
        {"epoch": steps.epoch, "order_position": at}
        | _locate_position(steps, at, world_size)
        | _add_shard(index, row)
        for at, row in at_of
    ]
    places.sort(key=itemgetter("order_position"))
    return _snapshot_facts(index, steps, world_size) | {"places": places, "dropped": dropped}
