"""The pack index on disk: publishing, opening and reading snapshots."""

from packidx.format.schema import Pack, Sample
from packidx.index.opening import open_index, read_head, snapshot_ids
from packidx.index.reader import Index

__all__ = [
    "Index",
    "Pack",
    "Sample",
    "open_index",
    "read_head",
    "snapshot_ids",
]
