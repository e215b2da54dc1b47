"""The pack index on disk: publishing, opening and verifying snapshots."""

from packidx.index.reader import Index, Pack, Sample, open_index, snapshot_ids
from packidx.index.snapshot import publish, read_head

__all__ = ["Index", "Pack", "Sample", "open_index", "publish", "read_head", "snapshot_ids"]
