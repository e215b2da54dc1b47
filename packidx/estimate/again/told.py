"""What was taken over from an earlier table, what was counted, and what became of each shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from packidx.estimate.again.earlier import Earlier
from packidx.estimate.again.keep import KeptRows, Match
from packidx.estimate.job import EstimateJob
from packidx.records.shards import short_names


@dataclass(frozen=True, slots=True)
class ShardChange:
    """What became of one shard since the earlier table was counted."""

    shard: str
    """Its URI."""
    name: str
    """Its file name, or the shortest path suffix that tells it from others."""
    change: str
    """``new``, ``grew``, ``shrank``, ``rewritten``, ``moved``, ``copied`` or ``vanished``; ``same``
    where its content was counted again for another reason."""
    detail: str
    """In words."""
    counted: bool
    """Whether it, or a part of it, was counted."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """How much of a table is an earlier one's, and why the rest is not."""

    num_samples: int = 0
    """Rows that were taken over."""
    num_shards: int = 0
    """Shards all of whose rows were."""
    num_counted: int = 0
    """Rows that were counted."""
    num_counted_shards: int = 0
    changes: list[ShardChange] = field(default_factory=list)
    """Shards that are not what they were, and where they were."""
    reason: str | None = None
    """Why nothing was taken over at all."""
    damaged: list[str] = field(default_factory=list)
    """Parts of the earlier table that were of no use."""


def all_taken_over(job: EstimateJob, earlier: Earlier) -> TakenOver:
    """Of a table that is left as it is."""
    return TakenOver(earlier.manifest.num_samples, len(job.shards))


def nothing_taken_over(job: EstimateJob, reason: str) -> TakenOver:
    """Of a table that is counted as a whole."""
    rows = sum(scan.num_records for scan in job.scans)
    return TakenOver(num_counted=rows, num_counted_shards=len(job.shards), reason=reason)


def taken_over(
    job: EstimateJob, earlier: Earlier, matches: Sequence[Match | None], kept: KeptRows
) -> TakenOver:
    """Of a table that is made of both."""
    names = short_names([shard.path for shard in job.shards])
    used = {match.number for match in matches if match is not None}
    here = {shard.uri for shard in job.shards}
    changes = []
    num_samples = num_shards = num_rows = 0
    for number, match in enumerate(matches):
        scan = job.scans[number]
        starts = [part.first_row for part in scan.ranges]
        rows = [part.num_records for part in scan.ranges if (number, part.first_row) in kept.rows]
        num_samples, num_rows = num_samples + sum(rows), num_rows + scan.num_records
        counted = len(rows) < len(starts)
        num_shards += not counted
        change, detail = _change(job, earlier, number, match, here)
        if counted and number in kept.reasons:
            detail = ", ".join(filter(None, (detail, kept.reasons[number])))
        if change != "same" or counted:
            uri = job.shards[number].uri
            changes.append(ShardChange(uri, names[number], change, detail, counted))
    for number, shard in enumerate(earlier.manifest.shards):
        if shard.uri not in here and number not in used:
            name = earlier.names[number]
            changes.append(ShardChange(shard.uri, name, "vanished", "vanished", False))
    return TakenOver(
        num_samples,
        num_shards,
        num_rows - num_samples,
        len(job.shards) - num_shards,
        changes,
        damaged=kept.damage,
    )


def _change(
    job: EstimateJob, earlier: Earlier, number: int, match: Match | None, here: set[str]
) -> tuple[str, str]:
    """What became of a shard of the job, and the same in words."""
    shard, scan = job.shards[number], job.scans[number]
    if match is not None:
        was = earlier.manifest.shards[match.number].uri
        if not match.is_moved:
            return "same", ""
        return ("copied", f"as {was}") if was in here else ("moved", f"was {was}")
    before = earlier.numbers.get(shard.uri)
    if before is None:
        return "new", "new"
    stated = earlier.manifest.shards[before]
    difference = scan.nbytes - stated.bytes
    if difference > 0:
        return "grew", f"grew by {_size(difference)}"
    if difference < 0:
        return "shrank", f"shrank by {_size(-difference)}"
    if scan.sha256 != stated.fingerprint:
        return "rewritten", "has other content of the same size"
    return "rewritten", "was written anew, or is read otherwise"


def _size(nbytes: int) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 1000**power:
            return f"{nbytes / 1000**power:.1f} {unit}"
    return f"{nbytes} byte" + ("" if nbytes == 1 else "s")
