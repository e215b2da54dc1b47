"""The pack index on disk: publishing, opening and reading snapshots."""

from packidx.format.schema import Pack, Sample
from packidx.index.opening import open_index, read_head, snapshot_ids
from packidx.index.reader import Index
from packidx.index.writer import SnapshotWriter, writing

__all__ = [
    "Index",
    "Pack",
    "Sample",
    "SnapshotWriter",
    "open_index",
    "read_head",
    "snapshot_ids",
    "writing",
]
