"""From a row of the samples table to its raw record, media opened: snapshot and shards suffice."""

from __future__ import annotations

import os
from typing import Any

from packidx.errors import MismatchError, PackidxError, SourceError
from packidx.index import Index, Sample
from packidx.records.media import open_media
from packidx.records.sources import read_record


class Fetcher:
    """Reads the records that an index locates; holds no file open, pickles small."""

    def __init__(self, index: Index) -> None:
        self.index = index
        sources = index.manifest["sources"]
        self._media_roots = {one["name"]: one.get("media_root") for one in sources}
        self._checked: set[int] = set()

    def read(self, sample: Sample) -> dict[str, Any]:
        """The record of `sample` in its own dialect, every media reference opened.

        Raises:
            PackidxError: the snapshot was planned from bare lengths and locates nothing.
            MismatchError: the shard's size is not the one that was counted.
            BadRecord, SourceError: record, media or shard cannot be read.
        """
        if sample.shard is None or sample.offset is None or sample.nbytes is None:
            raise PackidxError(
                f"snapshot {self.index.id} was planned from bare lengths and does not say where its"
                " samples are; plan from a table that `packidx estimate` wrote to read packs"
            )
        path = self._shard(sample.shard)
        record = read_record(path, sample.offset, sample.nbytes)
        root = self._media_roots.get(sample.source or "")
        confined = root is not None
        folder = self.index.resolve(root) if root is not None else os.path.dirname(path) or "."
        return open_media(record, folder, confined, self.index.resolve)

    def _shard(self, number: int) -> str:
        """Path of a shard; its size is compared with the plan's once per process."""
        shard = self.index.manifest["shards"][number]
        path = self.index.resolve(shard["uri"])
        if number not in self._checked:
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise SourceError(
                    f"shard {path}: {error.strerror} (seen from {os.getcwd()});"
                    " say where it is now with roots={old: new} or --root OLD=NEW"
                ) from error
            if size != shard["bytes"]:
                raise MismatchError(
                    f"shard {path} has {size} bytes, {shard['bytes']} when it was planned;"
                    " restore it, or estimate and plan again"
                )
            self._checked.add(number)
        return path
