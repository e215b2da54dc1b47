"""The files that the records of a range refer to, and by what it is known, unread, that none of
them changed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from packidx.errors import BadRecord
from packidx.io import urls
from packidx.io.identity import Identity, identity_of, lasting_identity
from packidx.io.ranges import Extent
from packidx.records.media.lmdb_store import data_file, split_reference
from packidx.records.media.paths import MediaRoot, resolve

_ABSENT = b"-"


def _digest(identities: Iterable[bytes | None]) -> str | None:
    known: list[bytes] = []
    for identity in identities:
        if identity is None:
            return None
        known.append(identity)
    return hashlib.sha256(b"".join(known)).hexdigest()


class References(NamedTuple):
    """What the records of a range refer to."""

    names: list[str]
    """The references as they stand in records, sorted."""
    digest: str | None
    """Of the identities of their files; None where nothing tells whether these change."""

    def are_unchanged(self, root: MediaRoot) -> bool:
        """Whether they lead from `root` to the very files that they led to."""
        if self.digest is None:
            return False
        return self.digest == _digest(_identity(name, root, identity_of) for name in self.names)


NOTHING = References([], _digest([]))


class LookedAt:
    """Collects the references of a range's records, each before its file is read."""

    def __init__(self) -> None:
        self._files: dict[str, bytes | None] = {}

    def note(self, ref: Any, root: MediaRoot) -> None:
        """Note what a record refers to; content that stands in its shard is known by the shard."""
        if isinstance(ref, str):
            if ref not in self._files and not ref.startswith("data:"):
                self._files[ref] = _identity(ref, root, lasting_identity)
        elif ref is not None and not isinstance(ref, bytes | Extent):
            self._files[""] = None  # a transform has opened it: who knows where it was

    def references(self) -> References:
        """What was noted."""
        names = sorted(self._files)
        return References(names, _digest(self._files[name] for name in names))


@functools.lru_cache(maxsize=1 << 16)
def _identity(
    ref: str, root: MediaRoot, identify: Callable[[str], Identity | None]
) -> bytes | None:
    """Of the file that a reference leads to; None where it may change unseen."""
    try:
        path = resolve(ref, root)
        if isinstance(path, bytes):
            return b""
        if (entry := split_reference(path)) is not None:
            path = data_file(entry[0])
        if urls.is_url(path):
            return None  # to ask for its version costs as much as to count it again
        identity = identify(path)
    except BadRecord:
        return None
    except (OSError, ValueError):
        return _ABSENT
    return None if identity is None else b"%d %d %d %d %d;" % identity


def forget_looked_at() -> None:
    """Files may have changed since."""
    _identity.cache_clear()
