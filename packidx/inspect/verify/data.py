"""Whether lengths and shards are those that were planned."""

from __future__ import annotations

from collections.abc import Iterator

from packidx.errors import FormatError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.index import Index
from packidx.inspect.verify.check import Check
from packidx.io import storage, urls
from packidx.io.copies import content_digest, overlapped, sizes
from packidx.records.containers.tar.container import TAR
from packidx.records.shards import scan


def check_lengths(index: Index) -> Iterator[Check]:
    """The lengths table, where it is still there, is the one that was planned."""
    planned = index.snapshot.lengths
    folder = index.resolve(planned.uri).rstrip("/") or "/"
    path = urls.join(folder, "manifest.json")
    if not storage.is_file(path):
        return
    try:
        manifest = load(path, LengthsManifest, "estimate again")
    except FormatError as error:
        yield Check("lengths table", False, str(error))
        return
    same = manifest.fingerprint == planned.fingerprint
    if not same and _goes_on(index, manifest):
        detail = f"{folder} has shards that were added since: not compared"
        yield Check("lengths table", True, detail)
        return
    detail = f"{folder} is the table that was planned"
    if not same:
        fingerprints = f"{manifest.fingerprint}, planned was {planned.fingerprint}"
        detail = f"{folder} has fingerprint {fingerprints}: plan again"
    yield Check("lengths table", same, detail)


def _goes_on(index: Index, lengths: LengthsManifest) -> bool:
    """Whether `lengths` has the planned shards and more after them."""
    planned, now = index.snapshot.shards, lengths.shards
    names = ("fingerprint", "rows", "source")
    return 0 < len(planned) < len(now) and all(
        getattr(old, name) == getattr(new, name)
        for old, new in zip(planned, now, strict=False)
        for name in names
    )


def check_shards(index: Index) -> Iterator[Check]:
    """Every shard is there with the bytes and the content that were counted."""
    shards = index.snapshot.shards
    if not shards:
        return
    paths = [index.resolve(shard.uri) for shard in shards]
    there_now = sizes(paths)
    there = [
        (path, shard.container)
        for path, size, shard in zip(paths, there_now, shards, strict=True)
        if size == shard.bytes
    ]
    digests = {
        path: digest for (path, _), digest in zip(there, overlapped(_digest, there), strict=True)
    }
    wrong = []
    for path, size, shard in zip(paths, there_now, shards, strict=True):
        if size is None:
            wrong.append(f"{path} is missing (name its new place with --root OLD=NEW)")
        elif size != shard.bytes:
            wrong.append(f"{path} has {size} bytes, counted were {shard.bytes}")
        elif digests[path] != shard.fingerprint:
            wrong.append(f"{path} has changed since it was counted")
    yield Check("shards", not wrong, "; ".join(wrong) or f"{len(shards)} shards unchanged")


def _digest(shard: tuple[str, str]) -> str:
    """A shard's fingerprint: of a tar that of what a scan reads, of another the whole file's."""
    path, kind = shard
    return scan(path, kind=kind).sha256 if kind == TAR else content_digest(path)
