"""Numbers about a snapshot's packs and schedule, and what a lengths table holds.

How long ranks wait: the ranks of a micro-step wait for the slowest of them: its packs' mean cost
over their largest is the share of its time that is useful. On the sum of both phases this is the
best case; where ranks wait for each other in the vision tower and again in the language model, each
phase has a slowest rank of its own. Beside the plan's order stands a seeded random one. Sums are
over integers, so these numbers are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from packidx.arrays import Float64s
from packidx.errors import FormatError
from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS
from packidx.hashing import derive_key
from packidx.index.cost import COLUMNS, fixed_point, pack_cost
from packidx.index.order import epoch_order, packs_per_step
from packidx.index.reader import Index
from packidx.inspect.sql import Row, rows_of
from packidx.io.cache import local_copies
from packidx.lengths.table import read_lengths, strongest_first
from packidx.packing.counts import LengthPairs
from packidx.permutation import draw_permutation


def estimate_memory(index: Index) -> dict[str, int] | None:
    """Return the heaviest pack (`pack_id`), its estimated `bytes` and the `limit` of the plan; None
    of a plan without ``--memory``."""
    model = index.snapshot.options.memory
    if model is None:
        return None
    packs = index.packs(["padded_length", "vision_patches", "num_samples"])
    counts = (column.fill_null(0).to_numpy().astype(np.float64) for column in packs.columns)
    estimates = model.estimate(*counts)
    heaviest = int(estimates.argmax())
    return {"pack_id": heaviest, "bytes": round(estimates[heaviest]), "limit": model.limit}


def plan_stats(index: Index) -> dict[str, Any]:
    """Return what the packs table tells of a plan.

    Returns:
        ``length_correlation`` of samples that share a pack (None if nothing varies), ``memory``
        (`estimate_memory`), and ``schedule``: what `ranks_stats` says of the first epoch, for the
        most data-parallel ranks that the plan was made for, and those of `RANKS` below that.
    """
    result = index.snapshot.result  # a rank has one pack of each micro-step
    most = [] if result.schedule == "random" else [result.schedule_chunk]
    ranks = [*(number for number in RANKS if not most or number < most[0]), *most]
    columns = index.packs(["num_samples", "length", "attention_cost"]).columns
    size, length, squares = (column.to_numpy().astype(np.int64) for column in columns)
    step, pairs = packs_per_step(index.snapshot) or 1, LengthPairs()
    pairs.add(np.ones_like(size), size, length, squares)
    return {
        "length_correlation": pairs.correlation(),
        "memory": estimate_memory(index),
        "schedule": ranks_stats(*scheduled_costs(index), step, ranks),
    }


_LONGEST = 5
_PERCENTS = {"min": 0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}
_NAMES = (
    *("source", "status", "reason", "key", "sample_id", "length", "label_tokens", "method"),
    *("image_tokens", "video_tokens", "audio_tokens", "num_images", "num_videos"),
)
_OF_ROWS = {
    name: "VARCHAR" if pa.types.is_string(LENGTHS.field(name).type) else "BIGINT" for name in _NAMES
}
_ROWS = """SELECT *, CASE
        WHEN (images > 0)::INT + (videos > 0)::INT + (audio > 0)::INT > 1 THEN 'mixed'
        WHEN images > 0 THEN 'images' WHEN videos > 0 THEN 'videos' WHEN audio > 0 THEN 'audio'
        WHEN coalesce(image_tokens, num_images) + coalesce(video_tokens, num_videos)
            + audio_tokens IS NULL THEN 'unknown' ELSE 'text' END AS kind
    FROM (SELECT *, greatest(image_tokens, num_images, 0) AS images,
        greatest(video_tokens, num_videos, 0) AS videos, greatest(audio_tokens, 0) AS audio
        FROM ({parts}))"""  # greatest() skips nulls
_SUMS = f"""SELECT source AS name, count(*) AS num_samples, count(*) FILTER (is_ok) AS num_ok,
    count(*) FILTER (NOT is_ok) AS num_rejected,
    CAST(coalesce(sum(length) FILTER (is_ok), 0) AS BIGINT) AS num_tokens,
    CAST(sum(label_tokens) FILTER (is_ok) AS BIGINT) AS label_tokens,
    histogram(method) FILTER (is_ok) AS methods,
    histogram(coalesce(reason, 'no reason')) FILTER (NOT is_ok) AS rejected,
    quantile_disc(length, {list(_PERCENTS.values())}) FILTER (is_ok) AS length,
    avg(length) FILTER (is_ok) AS mean, histogram(kind) FILTER (is_ok) AS modality,
    CAST(sum(num_images) FILTER (is_ok) AS BIGINT) AS num_images,
    CAST(sum(num_videos) FILTER (is_ok) AS BIGINT) AS num_videos
    FROM rows GROUP BY GROUPING SETS ((), (source))
    ORDER BY grouping(source) DESC, num_samples DESC, source"""
_LONG = f"""SELECT sample_id, source, key, length FROM rows WHERE is_ok AND length IS NOT NULL
    ORDER BY length DESC, sample_id, key LIMIT {_LONGEST}"""
_KINDS = ("text", "images", "videos", "audio", "mixed", "unknown")


def lengths_stats(path: str) -> dict[str, Any]:
    """Numbers about a lengths table, ready for JSON.

    Args:
        path: as `packidx plan` takes it: a folder, a Parquet file, a glob, or a URL of one.

    Returns:
        ``path``, ``num_samples`` (rows), ``num_ok``, ``num_rejected``, ``num_tokens`` (of the rows
        that are not rejected), ``label_tokens`` (of those that state them; None if none does),
        ``methods``, ``rejected`` (reason -> rows), ``sources`` (the same of each, largest first,
        and ``length``: quantiles by nearest rank and the mean, ``modality``: rows by what they
        hold, ``num_images``, ``num_videos``), and ``longest`` (samples with their keys).

    Raises:
        SourceError, FormatError, MismatchError: `path` is not usable.
    """
    table = read_lengths(path)
    with duckdb.connect() as connection:
        parts = []
        for part, names in zip(local_copies(table.files), table.names, strict=True):
            columns = ", ".join(
                f"""CAST({f'"{name}"' if name in names else "NULL"} AS {kind}) AS "{name}\""""
                for name, kind in _OF_ROWS.items()
            )
            ok = "coalesce(status = 'ok', false)" if "status" in names else "true"
            parts.append(f"SELECT {columns}, {ok} AS is_ok FROM {scan_of([part])}")
        try:
            connection.execute(
                f"CREATE VIEW rows AS {_ROWS.format(parts=' UNION ALL '.join(parts))}"
            )
            whole, *sources = map(_of_source, rows_of(connection, _SUMS))
            longest = rows_of(connection, _LONG)
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            reason = " ".join(str(error).split())
            raise FormatError(f"{path} is damaged ({reason}): write it again") from None
    of_all = {name: whole[name] for name in _TOTALS}
    return {"path": path, **of_all, "sources": sources, "longest": longest}


_TOTALS = (
    *("num_samples", "num_ok", "num_rejected", "num_tokens", "label_tokens"),
    *("methods", "rejected"),
)


def _of_source(row: Row) -> Row:
    """Return a row of sums with its members in the order in which they are printed."""
    mean, quantiles, held = row.pop("mean"), row["length"], row["modality"] or {}
    row["methods"] = strongest_first(row["methods"] or {}, "lengths")
    reasons = (row["rejected"] or {}).items()
    row["rejected"] = dict(sorted(reasons, key=lambda pair: (-pair[1], pair[0])))
    if mean is not None:
        row["length"] = dict(zip(_PERCENTS, quantiles, strict=True)) | {"mean": mean}
    return row | {"modality": {kind: held[kind] for kind in _KINDS if kind in held}}


RANKS = (8, 64, 512)
_DIGITS = 6


def scheduled_costs(index: Index) -> tuple[Float64s, Float64s]:
    """Return the costs of the packs in the language model and in the vision tower, float64 [n]
    each, in the order of their schedule (`packidx.index.cost.pack_cost`)."""
    packs = index.packs(COLUMNS)
    mine = epoch_order(index.snapshot).scheduled()
    columns = {
        name: packs[name].fill_null(0).to_numpy().astype(np.int64)[mine]
        for name in packs.column_names
        if packs[name].null_count < packs.num_rows
    }
    return pack_cost(index.snapshot.options.cost_model, columns)


def ranks_stats(
    llm: Float64s, vit: Float64s, global_batch: int, ranks: Sequence[int] = RANKS
) -> list[dict[str, Any]]:
    """Return how well the schedule serves each number of ranks, ready for JSON.

    Args:
        llm, vit: float64 [n], costs of the packs in the order of the schedule.
        global_batch: packs per step that was planned for, 1 where none was. Where a number of ranks
            does not divide it, the next multiple of that number is taken instead.
        ranks: numbers of data-parallel ranks.

    Returns:
        for each number of ranks: `ranks`, `global_batch`, `micro_steps`, `steps` (whole ones), and
        the orders `planned` and `random` with `useful` and `useful_by_phase`: the share of the time
        in which ranks do not wait, where they wait once per micro-step, or once in each phase. None
        stands for what there are too few packs to say.
    """
    drawn = draw_permutation(len(llm), derive_key(0, "random order"))
    found = []
    for number in ranks:
        size = -(-global_batch // number) * number
        steps = len(llm) // size
        numbers = {"ranks": number, "global_batch": size, "steps": steps}
        useful: Row = {"planned": None, "random": None}
        if steps:
            useful["planned"] = _useful_shares(llm, vit, size, number)
            useful["random"] = _useful_shares(llm[drawn], vit[drawn], size, number)
        found.append({**numbers, "micro_steps": size // number, **useful})
    return found


def _useful_shares(
    llm: Float64s, vit: Float64s, global_batch: int, ranks: int
) -> dict[str, float | None]:
    """Return the useful shares of the whole steps of packs in the order of their costs."""
    largest, whole = float((llm + vit).max()), len(llm) // global_batch * global_batch
    phases = [fixed_point(c[:whole], largest, 30).reshape(-1, ranks) for c in (llm, vit)]
    total = phases[0] + phases[1]
    done = int(total.sum())
    together = int(total.max(axis=1).sum()) * ranks
    apart = sum(int(phase.max(axis=1).sum()) for phase in phases) * ranks
    return {
        "useful": round(done / together, _DIGITS) if together else None,
        "useful_by_phase": round(done / apart, _DIGITS) if apart else None,
    }
