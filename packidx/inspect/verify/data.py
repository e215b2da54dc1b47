"""Whether shards and the encoder are those that were planned."""

from __future__ import annotations

from typing import Any

from packidx.errors import SourceError
from packidx.format.manifest import Shard
from packidx.index import Index
from packidx.inspect.verify.check import Check, few, not_checked, number_of, short
from packidx.io import urls
from packidx.io.copies import Content, content_of, overlapped, sizes
from packidx.records.containers.tar.container import TAR
from packidx.records.shards import scan
from packidx.user_code.named import fingerprint_of

BARE = "planned from bare lengths, which name no shards"


def check_shards(index: Index) -> Check:
    """Every shard is there with the bytes and the content that were counted."""
    shards = index.snapshot.shards
    if not shards:
        return not_checked("shards", BARE)
    paths = [urls.local_path(index.resolve(shard.uri)) for shard in shards]
    there_now = sizes(paths)
    sized = [
        (path, shard)
        for path, size, shard in zip(paths, there_now, shards, strict=True)
        if size == shard.bytes
    ]
    contents = overlapped(_content, sized)
    wrong = [
        f"{path} is missing (name its new place with --root OLD=NEW)"
        if size is None
        else f"{path} has {size:,} bytes, counted were {shard.bytes:,}"
        for path, size, shard in zip(paths, there_now, shards, strict=True)
        if size != shard.bytes
    ]
    for (path, shard), content in zip(sized, contents, strict=True):
        if isinstance(content, SourceError):
            wrong.append(str(content))
        elif content.sha256 != shard.fingerprint:
            said = f"SHA-256 {short(content.sha256)}…, counted was {short(shard.fingerprint)}…"
            wrong.append(f"{path} has changed since it was counted ({said})")
    hashed = sum(read.nbytes for read in contents if isinstance(read, Content))
    numbers = {"shards": len(sized), "bytes_hashed": hashed}
    parts = ", ".join([number_of(len(sized), "shards"), f"{hashed:,} bytes hashed"])
    if any(shard.container == TAR for shard in shards):
        size = sum(size or 0 for size in there_now)
        numbers["bytes"] = size
        parts += f" of {size:,} (of tars all but media)"
    return Check("shards", not wrong, few(wrong) or f"{parts}: as they were counted", numbers)


def _content(sized: tuple[str, Shard]) -> Content | SourceError:
    """What a shard's fingerprint is of: of a tar what a scan reads, of another the whole file."""
    path, shard = sized
    if shard.container != TAR:
        return content_of(path)
    try:
        scanned = scan(path, kind=TAR)
    except SourceError as error:
        return error
    return Content(scanned.sha256, scanned.num_hashed or 0)


def check_fingerprint(index: Index, encoder: Any) -> Check:
    """`encoder` is the one that counted the lengths."""
    counted = index.snapshot.lengths.encoder
    if encoder is None:
        return not_checked("encoder", "give --processor or --encode")
    if counted is None:
        why = "the lengths are not a processor's, so there is nothing to compare (column method)"
        return not_checked("encoder", why)
    planned, given = counted.fingerprint, fingerprint_of(encoder)
    if planned is None or given is None:
        unknown = "the encoder" if given is None else f"{counted.name}, which counted,"
        why = f"{unknown} has no fingerprint; --sample N compares lengths"
        if given is None and planned is not None:
            why += f" with those of {counted.name}"
        return not_checked("encoder", why)
    of = getattr(encoder, "fingerprint_parts", None)
    parts = {} if of is None else of()
    settings = f", {number_of(len(parts), 'settings')}" if parts else ""
    numbers = {"settings": len(parts)}
    if given == planned:
        detail = f"fingerprint {short(given)}…{settings}: the encoder that counted"
        return Check("encoder", True, detail, numbers)
    differences = [counted.name, *counted.differences(parts)] if parts else [counted.name]
    detail = (
        f"the encoder has fingerprint {short(given)}…, the lengths were counted by "
        f"{short(planned)}… ({', '.join(map(str, differences))}): use that one, or estimate again"
    )
    return Check("encoder", False, detail, numbers)
