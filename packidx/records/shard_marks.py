"""By what a reader sees, without reading all of a shard, that it is not the one that was counted.

A size alone lets a shard pass in which a word was exchanged for another of its length. The time of
change costs nothing to look at; where it is another one, some blocks are compared, since a copy has
a time of its own. `packidx verify` compares everything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from packidx.errors import SourceError
from packidx.format.manifest import Shard
from packidx.io import cache, storage, urls
from packidx.io.storage import reading

BLOCK = 4096
BLOCKS = 16


def marks_of(path: str) -> dict[str, Any]:
    """Return what the manifest says of a shard that is read next: of a file, of this machine or a
    store.

    Raises:
        SourceError: it cannot be read.
    """
    with reading(path):
        marks = unread_marks(path)
        return marks if urls.is_url(path) else marks | {"sampled": sampled(path)}


def unread_marks(
    path: str, stat: Callable[[str], storage.Stat] = cache.remembered_stat
) -> dict[str, Any]:
    """Members of a `Shard` for which it need not be read: its bytes and its marks."""
    if urls.is_url(path):
        told = stat(path)
        return {"bytes": told.nbytes, "version": told.version}
    status = os.stat(path)
    return {"bytes": status.st_size, "mtime": status.st_mtime_ns}


def is_unchanged(path: str, shard: Shard) -> bool:
    """Return True if a file has the size, the marks and the sampled blocks of `shard`.

    Raises:
        SourceError: it cannot be read.
    """
    marks = marks_of(path)
    return None not in marks.values() and all(
        getattr(shard, name) == value for name, value in marks.items()
    )


def check_unchanged(path: str, shard: Shard) -> None:
    """Raise unless a file is still `shard`, as its scan began with it.

    What was counted of it is then of one file; a record that was cut off or exchanged in between
    is in no row.

    Raises:
        SourceError: it was written to, replaced or removed.
    """
    with reading(path):
        now = unread_marks(path, storage.stat)
    if any(getattr(shard, name) not in (None, value) for name, value in now.items()):
        what = f"{shard.bytes} bytes before and {now['bytes']} now"
        what = "it was written to" if now["bytes"] == shard.bytes else what
        raise SourceError(f"{path} changed while it was counted ({what}); start again")


def sampled(path: str) -> str:
    """SHA-256 of a file's size and of some of its blocks; of all of it where it has no more."""
    with open(path, "rb", buffering=0) as file:
        handle = file.fileno()
        nbytes = os.fstat(handle).st_size
        hasher = hashlib.sha256(nbytes.to_bytes(8, "little"))
        if nbytes <= BLOCK * BLOCKS:
            hasher.update(os.pread(handle, BLOCK * BLOCKS, 0))
        else:
            for number in range(BLOCKS):
                start = number * (nbytes - BLOCK) // (BLOCKS - 1)
                hasher.update(os.pread(handle, BLOCK, start))
    return hasher.hexdigest()


def difference(path: str, shard: Shard) -> str | None:
    """In what a file of the planned size is certainly not the shard that was counted; None where
    nothing tells. Looking may end in an OSError."""
    if urls.is_url(path):
        version, stated = cache.remembered_stat(path).version, shard.version
        if path != shard.uri or stated in (None, version):
            return None
        return f"is version {version} in its store, and version {stated} was counted"
    if shard.sampled is None or os.stat(path).st_mtime_ns == shard.mtime:
        return None
    if sampled(path) == shard.sampled:
        return None
    return "has as many bytes as were counted, but other ones"
