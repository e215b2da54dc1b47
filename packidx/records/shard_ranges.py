"""The ranges of a shard that was scanned, as a manifest states them: so it is not read again."""

from __future__ import annotations

from packidx.format import manifest as format_manifest
from packidx.records.containers.base import TASK_BYTES, RecordRange, ShardScan
from packidx.records.containers.registry import DEFAULT as JSONL

Stated = tuple[tuple[int, ...], ...]


def stated_ranges(container: str, scan: ShardScan) -> Stated | None:
    """``ranges`` of a shard in a manifest; None where it goes without saying."""
    if _is_one(container, scan.nbytes) and scan.ranges == _one(scan.nbytes, scan.num_records):
        return None
    return tuple(
        (part.start, part.end, part.first_row, part.num_records)
        + (() if part.weight is None else (part.weight,))
        for part in scan.ranges
    )


def ranges_of(shard: format_manifest.Shard) -> tuple[RecordRange, ...] | None:
    """The ranges of a shard that was counted; None where its manifest does not say them.

    Those of a tar lack which keys come again.
    """
    if shard.ranges is not None:
        return tuple(RecordRange(*part) for part in shard.ranges)
    return _one(shard.bytes, shard.rows) if _is_one(shard.container, shard.bytes) else None


def has_ranges(shard: format_manifest.Shard, scan: ShardScan) -> bool:
    """Whether a shard was counted in the very ranges of a scan."""
    stated = ranges_of(shard)
    return stated is not None and [(part.first_row, part.num_records) for part in stated] == [
        (part.first_row, part.num_records) for part in scan.ranges
    ]


def _is_one(container: str, nbytes: int) -> bool:
    """Whether a shard is one range, unless something else is said: a compressed one is never cut,
    and short lines are not either."""
    return "." in container or (container == JSONL and nbytes <= TASK_BYTES)


def _one(nbytes: int, rows: int) -> tuple[RecordRange, ...]:
    return (RecordRange(0, nbytes, 0, rows),) if rows else ()
