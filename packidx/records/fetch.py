"""Read the record of a row of the samples table, its media opened, by snapshot and shards alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from packidx.errors import BadRecord, ChangedSource, PackidxError, SourceError
from packidx.format.manifest import DEFAULT, Layout
from packidx.format.schema import PlannedSample
from packidx.io import cache, urls
from packidx.records.containers.base import Locator
from packidx.records.containers.registry import get_container
from packidx.records.conversation import Conversation
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot, is_inside
from packidx.records.read import Change, ReadRecord, RecordReader, encoder_input

if TYPE_CHECKING:
    from packidx.format.index import IndexManifest
    from packidx.format.lengths import LengthsManifest
    from packidx.user_code import Transform


class Snapshot(Protocol):
    """The place of the records of a `packidx.index.Index`."""

    path: str
    id: str
    roots: dict[str, str]

    @property
    def snapshot(self) -> IndexManifest | LengthsManifest:
        """The manifest, or that of lengths: sources and shards."""
        ...

    def resolve(self, uri: str) -> str:
        """Return where `uri` is now."""


class Fetcher:
    """Reads the records that an index locates; holds no file open, pickles small.

    Of the manifest it needs, per shard, `uri`, `bytes`, and `container` where it is not JSON Lines;
    per source `name`, `media_root`, and `remote_media` and `layout` where they were stated.

    Args:
        index: locates the records.
        transform: what they are before they are laid out; None reads them as they are.
        encode: what `read` is for; ours takes conversations.
        is_strict: True to refuse records of no dialect, with leftovers, or with a placeholder and
            no medium, where nothing has counted them before.
    """

    def __init__(
        self,
        index: Snapshot,
        transform: Transform | None = None,
        encode: Any = None,
        *,
        is_strict: bool = False,
    ) -> None:
        self.index, self._encode = index, encode
        self._transform, self._is_strict = transform, is_strict
        self._sources = {source.name: source for source in index.snapshot.sources}
        self._checked: set[int] = set()  # shards of the planned size

    def read(self, sample: PlannedSample, epoch: int = 0) -> Conversation | dict[str, Any]:
        """Return the record of `sample` for its encoder, media opened (`encoder_input`).

        Raises:
            PackidxError: as `record`; a BadRecord if a medium cannot be read.
        """
        record, root = self.record(sample, epoch)
        if self._is_strict and record.error is not None:
            raise record.error
        return encoder_input(record, MediaOpener(root, self.index.resolve), self._encode)

    def waits(self, sample: PlannedSample) -> bool:
        """Return whether a sample's record or media are ranges or objects of a store."""
        shards, shard = self.index.snapshot.shards, sample.shard
        if shard is None or shard >= len(shards) or sample.offset is None:
            return False  # what is read through a copy is not for several threads
        places = (shards[shard].uri, *self._media_places(sample.source))
        return any(urls.is_url(self.index.resolve(place)) for place in places if place)

    def record(self, sample: PlannedSample, epoch: int = 0) -> tuple[ReadRecord, MediaRoot]:
        """Return the record of `sample` as it was read, and where its media may lie.

        Raises:
            PackidxError: the snapshot was planned from bare lengths and locates nothing.
            ChangedSource: the shard's size is not the one that was counted, or the record there is
                another one's.
            BadRecord, SourceError: record or shard cannot be read.
        """
        shards, shard = self.index.snapshot.shards, sample.shard
        located = sample.offset is not None and sample.nbytes is not None
        if shard is None or shard >= len(shards) or (sample.row is None and not located):
            text = f"snapshot {self.index.id} was planned from bare lengths, without places"
            raise PackidxError(f"{text}: plan from a table that `packidx estimate` wrote")
        path, transform = self.shard(shard), self._transform
        kind, layout = shards[shard].container, self.layout(sample.source)
        row = -1 if sample.row is None else sample.row
        change: Change | None = None
        if transform is not None:
            turn = {"epoch": epoch, "copy": sample.copy or 0}
            change = lambda data, _: transform.apply(data, sample.sample_id, **turn)  # noqa: E731
        columns: dict[str, str] | None = {} if self._is_strict else None
        reader = RecordReader(layout, change, columns, has_media=self._is_strict)
        at = Locator(row, sample.offset, sample.nbytes)
        try:
            record = reader.read(get_container(kind, layout.delimiter).read_one(path, at))
        except SourceError:
            self._checked.discard(shard)  # it may have changed since it was looked at
            self.shard(shard)
            raise
        if record.error is not None:
            place = f"row {row}" if row >= 0 else f"offset {sample.offset}"
            error = BadRecord(record.error.reason, f"{record.error.detail} ({path}, {place})")
            record = record._replace(error=error)
        check_key(path, sample, record.key)
        return record, self._media_root(sample.source, shards[shard].uri, path)

    def _media_root(self, source: str | None, uri: str, path: str) -> MediaRoot:
        """Return where a record's media may lie: what was allowed when its shard was at `uri`, now
        that the shard is at `path`."""
        stated, *elsewhere = self._media_places(source)
        allowed = [urls.to_absolute(at) for at in (stated or os.path.dirname(uri), *elsewhere)]
        moved = [
            new
            for old, new in self.index.roots.items()
            if any(is_inside(urls.to_absolute(old), place) for place in allowed)
        ]
        own = os.path.dirname(path) or "."
        folder = own if stated is None else self.index.resolve(stated)
        places = (*map(self.index.resolve, elsewhere), *moved)
        return MediaRoot(folder, stated is not None, places)

    def _media_places(self, source: str | None) -> tuple[str | None, *tuple[str, ...]]:
        """Return the media root of a source, if it was stated, and its places of remote media."""
        found = self._sources.get(source or "")
        if found is None:
            return (None,)
        return found.media_root or self.layout(source).media_root, *found.remote_media

    def layout(self, source: str | None) -> Layout:
        """Return how a source names things."""
        found = self._sources.get(source or "")
        return (found and found.layout) or DEFAULT

    def shard(self, number: int) -> str:
        """Path or URL of a shard; a SourceError if it is not there, and a ChangedSource if it has
        another size than the plan says, which is compared once per process."""
        shard = self.index.snapshot.shards[number]
        path = urls.local_path(self.index.resolve(shard.uri))
        if number in self._checked:
            return path
        cache.forget_stats(path)
        try:
            size = cache.remembered_stat(path).nbytes
        except OSError as error:
            unused = bool(self.index.roots) and path == shard.uri
            given = f" (of {', '.join(self.index.roots)} none is its beginning)"
            raise SourceError(
                f"shard {path}: {error.strerror} (seen from {os.getcwd()});"
                " say where it is now with roots={old: new} or --root OLD=NEW"
                f"{given if unused else ''}"
            ) from error
        if size != shard.bytes:
            text = f"shard {path} has {size} bytes, {shard.bytes} when it was planned"
            raise ChangedSource(f"{text}; restore it, or estimate and plan again")
        self._checked.add(number)
        return path


def check_key(path: str, sample: PlannedSample, actual: str | None) -> None:
    """Raise a ChangedSource if a record is called `actual`, and not what the plan calls it."""
    if actual is not None and sample.key is not None and actual != sample.key:
        text = f"shard {path} has the record {actual!r} where {sample.key!r} was counted"
        raise ChangedSource(f"{text}: restore it, or estimate and plan again")
