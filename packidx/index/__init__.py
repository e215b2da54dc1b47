"""The pack index on disk: publishing, opening and reading snapshots."""

from packidx.format.schema import PlannedPack, PlannedSample
from packidx.index.opening import open_index, read_head, snapshot_ids
from packidx.index.reader import Index

__all__ = [
    "Index",
    "PlannedPack",
    "PlannedSample",
    "open_index",
    "read_head",
    "snapshot_ids",
]
