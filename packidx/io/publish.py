"""Putting a finished folder into an object store, in an order in which no reader sees half of it.

A store has no folders to exchange. What a reader begins with (a manifest, an export's metadata) is
deleted first and written last, so that meanwhile there is nothing to begin with.
`.packidx-files.json` in the folder lists what packidx has put there: nothing else is ever
overwritten or deleted, and a run that was cut off is known by it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence

from packidx.errors import OptionError
from packidx.io import storage, urls
from packidx.io.copies import overlapped
from packidx.io.own_files import (
    FORMAT,
    LIST,
    Kind,
    check_free,
    made_by_another,
    names_below,
    read_json_object,
)

_MD5 = re.compile("[0-9a-f]{32}")
_LOOK = 1.0  # seconds between two looks at whose folder it is

# What a reader begins with, in the order in which it is written; all other files come before.
_ENTRIES = (".nv-meta", "metadataset.yaml", ".packidx.json", "manifest.json")

Uploaded = Callable[[int, int], None]
"""``uploaded(done, total)``: so many files are in the store."""

_MANIFEST = "manifest.json"


def publish(folder: str, url: str, kind: Kind, uploaded: Uploaded | None = None) -> None:
    """Replace what packidx has at `url` by the files of `folder`.

    A store has no locks. Whoever begins puts a token of its own into the list of files; a writer
    that finds another's there, or files that are not what it has uploaded, stops before anything
    is there that a reader would begin with.

    Args:
        kind: what it is; only the same kind of thing is replaced.

    Raises:
        OptionError: something else is at `url`, or another run is writing there.
        OSError: the store cannot be written; the next run begins anew.
    """
    names = names_below(folder)
    there, known = check_free(url, kind)
    listing = _Listing(url, kind.what, secrets.token_hex(8))
    listing.write(sorted({*names, *known} - {LIST}))
    for name in reversed(_in_order(there)):
        storage.remove(urls.join(url, name))
    others = [name for name in names if not _rank(name)]
    upload(folder, url, others, uploaded, listing.check)
    kept = {*names, *filter(_rank, there), LIST}
    overlapped(storage.remove, [urls.join(url, name) for name in there if name not in kept])
    listing.check(now=True)
    _check_content(folder, url, others, listing)
    listing.write(names)
    for name in _in_order(names):  # each when the one before is there
        storage.upload(os.path.join(folder, name), urls.join(url, name))


def upload(
    folder: str,
    url: str,
    names: Sequence[str],
    uploaded: Uploaded | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Copy files of a folder into a store, several at a time, each after a call of `check`.

    Raises:
        OSError: one cannot be read or written.
    """
    done = 0

    def put(file: tuple[str, str]) -> None:
        nonlocal done
        check()
        storage.upload(file[1], file[0])
        done += 1
        if uploaded is not None:
            uploaded(done, len(names))

    pairs = [(urls.join(url, name), os.path.join(folder, name)) for name in names]
    overlapped(put, pairs)


def _check_content(folder: str, url: str, names: Sequence[str], listing: _Listing) -> None:
    """Compare what the store has with the folder: another run's upload may have come late.

    Content is known by size and, where the store names a version by it as S3 does, by MD5.

    Raises:
        OptionError: a file is another run's.
    """
    by_content = listing.is_named_by_content()

    def is_ours(file: tuple[str, str]) -> bool:
        stat = storage.stat(file[0])
        if stat.nbytes != os.path.getsize(file[1]):
            return False
        part = storage.upload_part(file[0], stat.nbytes)
        expected = _etag(file[1], stat.version, part) if by_content else None
        return expected is None or expected == stat.version

    pairs = [(urls.join(url, name), os.path.join(folder, name)) for name in names]
    if not all(overlapped(is_ours, pairs)):
        raise listing.lost()


def _etag(path: str, version: str, part: int | None) -> str | None:
    """What S3 calls a file's content: its MD5, or that of its parts' and how many they are.

    None where `version` is nothing of the kind, or the size of its parts, `part`, is not known.
    """
    digest, _, parts = version.partition("-")
    nbytes = os.path.getsize(path)
    if not _MD5.fullmatch(digest) or (parts and part is None):
        return None
    hashers = []
    with open(path, "rb") as file:
        size = part if parts and part else max(nbytes, 1)
        for start in range(0, max(nbytes, 1), size):
            hasher = hashlib.md5(usedforsecurity=False)
            left = min(size, nbytes - start)
            while left and (block := file.read(min(left, 1 << 20))):
                hasher.update(block)
                left -= len(block)
            hashers.append(hasher)
    if not parts:
        return hashers[0].hexdigest()
    joined = b"".join(hasher.digest() for hasher in hashers)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(hashers)}"


class _Listing:
    """The list of a folder's files, and the token of the run that writes them."""

    def __init__(self, url: str, what: str, token: str) -> None:
        self._url, self._what, self._token = url, what, token
        self._looked, self._text = 0.0, b""

    def write(self, names: Sequence[str]) -> None:
        head = {"format": FORMAT, "version": 1, "kind": self._what, "writer": self._token}
        self._text = json.dumps({**head, "files": list(names)}, indent=2).encode() + b"\n"
        storage.write(urls.join(self._url, LIST), self._text)

    def is_named_by_content(self) -> bool:
        """Whether the store's version of a small file is its MD5; not so where it encrypts."""
        version = storage.stat(urls.join(self._url, LIST)).version
        return version == hashlib.md5(self._text, usedforsecurity=False).hexdigest()

    def check(self, now: bool = False) -> None:
        """Look, now or every second, whether the token is still ours.

        Raises:
            OptionError: it is not.
        """
        if now or time.monotonic() - self._looked > _LOOK:
            if read_json_object(urls.join(self._url, LIST)).get("writer") != self._token:
                raise self.lost()
            self._looked = time.monotonic()

    def lost(self) -> OptionError:
        return made_by_another(self._url, self._what)


def _rank(name: str) -> int:
    """0 of a file that others lead to, else where it stands among those a reader begins with."""
    first = name.partition("/")[0]
    return _ENTRIES.index(first) + 1 if first in _ENTRIES else 0


def _in_order(names: Sequence[str]) -> list[str]:
    """Those that a reader begins with, as they are written: `.info` is `.nv-meta`'s last."""
    return sorted(sorted(filter(_rank, names), reverse=True), key=_rank)


def put_snapshot(staging: str, url: str, uploaded: Uploaded | None = None) -> None:
    """Upload a snapshot's files, its manifest when all others are there.

    What another writer of this very plan uploads meanwhile is the same. A manifest that is there
    is of a damaged snapshot, which nobody is to begin with while it is made whole.

    Raises:
        OSError: the store cannot be written.
    """
    manifest = urls.join(url, _MANIFEST)
    if storage.is_file(manifest):
        storage.remove(manifest)
    names = sorted(name for name in os.listdir(staging) if name != _MANIFEST)
    upload(staging, url, names, uploaded)
    there = [name for name in storage.names(url) if name not in (*names, _MANIFEST)]
    overlapped(storage.remove, [urls.join(url, name) for name in there])
    storage.upload(os.path.join(staging, _MANIFEST), manifest)
