"""How far estimates are off: some samples, encoded for real, beside what was estimated for them.

Where lengths cannot be exact, or counting them so would take too long, a table is estimated cheaply
and N random samples of it are encoded. Half of the N are dealt out to the sources equally, half by
size: a small source is known as well as a large one needs to be. `packidx.plan.margin` makes a
margin of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.errors import BadRecord
from packidx.estimate.counter import ExaminedRecord, RecordCounter
from packidx.estimate.examine import ShardContext, changes_of, count_rows, examine
from packidx.estimate.job import EstimateJob, shard_contexts, source_sums
from packidx.estimate.tasks import count_by
from packidx.format.lengths import CalibratedSource, Calibration
from packidx.hashing import derive_key
from packidx.io.output_folder import OutputFolder
from packidx.lengths.parts import Part
from packidx.permutation import KeyedPermutation
from packidx.records.containers.base import RawRecord
from packidx.records.shards import read_row
from packidx.run.workers import WorkerDied, Workers

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""Of the error distributions in the manifest."""

_CHUNK = 16  # samples per call of a worker
_COLUMNS = ["shard", "sample_id", "row", "offset", "nbytes", "length", "source", "status"]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One sample that is encoded."""

    shard: ShardContext
    sample_id: int
    row: int
    offset: int | None
    nbytes: int | None
    length: int
    """As it was estimated."""


def calibrate(
    job: EstimateJob,
    parts: Sequence[Part],
    output: OutputFolder,
    workers: Workers,
    progress: Callable[[int, int], None],
) -> Calibration:
    """Encode `job.calibrate` samples of a table whose `parts` are counted, in `output`.

    Args:
        job: the table's; its counter is a cheap one.
        progress: called with (done, total) samples.

    Returns:
        ``calibration`` of the manifest (FORMAT.md).

    Raises:
        SourceError: a shard cannot be read, or a worker process died.
    """
    chosen = _choose(job, parts, output)
    chunks = [chosen[first : first + _CHUNK] for first in range(0, len(chosen), _CHUNK)]
    settings, counter = replace(job.settings, cheap=False), job.counter
    actual: list[int | None] = []
    try:
        for _, lengths in count_by(
            workers, encode_chunk, chunks, settings, counter, here=settings.build, in_turn=True
        ):
            actual += lengths
            progress(len(actual), len(chosen))
    except WorkerDied as died:
        raise died.error("encoded samples") from None
    return _describe(job, parts, chosen, actual)


def encode_chunk(chunk: Sequence[_Chosen], counter: RecordCounter) -> list[int | None]:
    """The true lengths; None where a record cannot be encoded."""
    rows = [_examine(sample, counter) for sample in chunk]
    counts, good = count_rows(rows, counter)
    lengths: list[int | None] = [None] * len(chunk)
    for at, number in enumerate(good):
        if rows[number].error is None:
            lengths[number] = int(counts.length[at])
    return lengths


def _examine(sample: _Chosen, counter: RecordCounter) -> ExaminedRecord:
    shard, located = sample.shard, (sample.row, sample.offset, sample.nbytes)
    record: dict[str, Any] | BadRecord
    try:
        transform, shift = counter.transform, sample.sample_id - sample.row
        change = None if transform is None else changes_of(transform, shift)
        options: dict[str, Any] = {"kind": shard.container, "layout": shard.layout}
        record = read_row(shard.path, *located, **options, change=change)
    except BadRecord as error:
        record = error
    return examine(RawRecord(*located, record), shard, sample.sample_id, counter)


def _choose(job: EstimateJob, parts: Sequence[Part], output: OutputFolder) -> list[_Chosen]:
    """The samples, in order of `sample_id`; part by part, so that one part is in memory."""
    totals = {name: sums.num_usable for name, sums in source_sums(job, parts).items()}
    quotas = _quotas(list(totals.values()), job.calibrate)
    ranks = {
        name: _draw(total, quota, derive_key(job.settings.seed, "calibrate", name))
        for (name, total), quota in zip(totals.items(), quotas, strict=True)
    }
    shards = shard_contexts(job)
    before = dict.fromkeys(totals, 0)
    chosen: list[_Chosen] = []
    for part in parts:
        wanted: dict[str, Int64s] = {}
        for name, sums in part.sources.items():
            here = ranks[name] - before[name]
            wanted[name] = here[(here >= 0) & (here < sums.num_usable)]
            before[name] += sums.num_usable
        if any(map(len, wanted.values())):
            chosen += _locate(os.path.join(output.table, part.path), wanted, shards)
    return chosen


def _locate(path: str, wanted: dict[str, Int64s], shards: Sequence[ShardContext]) -> list[_Chosen]:
    """The usable rows of a part by their number among those of their source."""
    table = pq.read_table(os.path.abspath(path), columns=_COLUMNS)
    sources = np.array(table.column("source").to_pylist(), object)
    usable = np.array(pa.compute.equal(table.column("status"), "ok"))
    picked = [np.flatnonzero(usable & (sources == name))[at] for name, at in wanted.items()]
    rows = table.select(_COLUMNS[:-2]).take(np.sort(np.concatenate(picked))).to_pylist()
    return [_Chosen(shards[row.pop("shard")], **row) for row in rows]


def _quotas(totals: Sequence[int], wanted: int) -> list[int]:
    """How many samples of each source, `wanted` in all where there are as many."""
    everything = sum(totals)
    if everything <= wanted:
        return list(totals)
    equal = wanted // 2 // max(1, sum(total > 0 for total in totals))
    quotas = [min(total, equal) for total in totals]
    rest = wanted - sum(quotas)
    left = everything - sum(quotas)
    shares = [rest * (total - quota) // left for total, quota in zip(totals, quotas, strict=True)]
    quotas = [quota + share for quota, share in zip(quotas, shares, strict=True)]
    for number in sorted(range(len(totals)), key=lambda i: -totals[i])[: wanted - sum(quotas)]:
        quotas[number] += quotas[number] < totals[number]
    return quotas


def _draw(total: int, count: int, key: int) -> Int64s:
    """`count` different numbers below `total`, at random; needs memory for these alone."""
    bits = max(1, (total - 1).bit_length())
    shuffled, size = KeyedPermutation.keyed(bits, key), 1 << bits
    for tried in (min(size, 4 * count + 64), size):
        drawn = shuffled.inverse(np.arange(tried, dtype=np.uint64)).astype(np.int64)
        drawn = drawn[drawn < total][:count]
        if len(drawn) == count:
            break
    return np.sort(drawn)


def _describe(
    job: EstimateJob,
    parts: Sequence[Part],
    chosen: Sequence[_Chosen],
    actual: Sequence[int | None],
) -> Calibration:
    sources = []
    for name, sums in source_sums(job, parts).items():
        mine = [
            (sample.length, length)
            for sample, length in zip(chosen, actual, strict=True)
            if sample.shard.source == name
        ]
        pairs = sorted((guess, length) for guess, length in mine if length is not None)
        guesses, lengths = np.array(pairs, np.int64).reshape(-1, 2).T
        # All of them: a margin depends on capacity and chance, which only a plan knows.
        calibrated = CalibratedSource(
            name=name,
            num_usable=sums.num_usable,
            num_failed=len(mine) - len(pairs),
            num_samples=len(pairs),
            difference=_quantiles(lengths - guesses) if pairs else None,
            ratio=_quantiles(lengths / np.maximum(guesses, 1)) if pairs else None,
            estimated=tuple(guesses.tolist()),
            actual=tuple(lengths.tolist()),
        )
        sources.append(calibrated)
    return Calibration(
        num_samples=sum(source.num_samples for source in sources),
        seed=job.settings.seed,
        sources=tuple(sources),
    )


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    at = np.quantile(values, QUANTILES, method="inverted_cdf")
    return {f"{q:g}": round(float(value), 6) for q, value in zip(QUANTILES, at, strict=True)}
