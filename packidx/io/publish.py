"""Putting a finished folder into an object store, in an order in which no reader sees half of it.

A store has no folders to exchange. What a reader begins with (a manifest, an export's metadata) is
deleted first and written last, so that meanwhile there is nothing to begin with.
`.packidx-files.json` in the folder lists what packidx has put there: nothing else is ever
overwritten or deleted, and a run that was cut off is known by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence

from packidx.io import storage, urls
from packidx.io.own_files import FORMAT, LIST, Kind, check_free, names_below

# What a reader begins with, in the order in which it is written; all other files come before.
_ENTRIES = (".nv-meta", "metadataset.yaml", ".packidx.json", "manifest.json")

Uploaded = Callable[[int, int], None]
"""``uploaded(done, total)``: so many files are in the store."""


def publish(folder: str, url: str, kind: Kind, uploaded: Uploaded | None = None) -> None:
    """Replace what packidx has at `url` by the files of `folder`.

    A store has no locks. Of two runs that write to one place at once, files of both may be left;
    the manifest, which states the digest of each, then shows it to whoever reads them.

    Args:
        kind: what it is; only the same kind of thing is replaced.

    Raises:
        OptionError: something else is at `url`.
        OSError: the store cannot be written; the next run begins anew.
    """
    names = names_below(folder)
    there, known = check_free(url, kind)
    _list(url, kind.what, sorted({*names, *known} - {LIST}))
    _replace(folder, url, [name for name in there if name != LIST], uploaded)
    _list(url, kind.what, names)


def _replace(folder: str, url: str, there: Sequence[str], uploaded: Uploaded | None) -> None:
    """Put the files of `folder` in the place of those that are `there`."""
    names = names_below(folder)
    for name in reversed(_in_order(there)):
        storage.remove(urls.join(url, name))
    first = [name for name in names if not _rank(name)]
    upload({urls.join(url, name): os.path.join(folder, name) for name in first}, uploaded)
    stale = [name for name in there if not _rank(name) and name not in names]
    storage.overlapped(storage.remove, [urls.join(url, name) for name in stale])
    for name in _in_order(names):  # each when the one before is there
        storage.upload(os.path.join(folder, name), urls.join(url, name))


def _list(url: str, what: str, names: Sequence[str]) -> None:
    """Write the list of the folder's files."""
    stated = {"format": FORMAT, "version": 1, "kind": what, "files": list(names)}
    storage.write(urls.join(url, LIST), json.dumps(stated, indent=2).encode() + b"\n")


def upload(files: Mapping[str, str], uploaded: Uploaded | None = None) -> None:
    """Copy files into a store, several at a time.

    Args:
        files: URL -> path on this machine.

    Raises:
        OSError: one cannot be read or written.
    """
    done = 0

    def put(file: tuple[str, str]) -> None:
        nonlocal done
        url, path = file
        storage.upload(path, url)
        done += 1
        if uploaded is not None:
            uploaded(done, len(files))

    storage.overlapped(put, list(files.items()))


def _rank(name: str) -> int:
    """0 of a file that others lead to, else where it stands among those a reader begins with."""
    first = name.partition("/")[0]
    return _ENTRIES.index(first) + 1 if first in _ENTRIES else 0


def _in_order(names: Sequence[str]) -> list[str]:
    """Return what a reader begins with, in the order of writing: `.info` is `.nv-meta`'s last."""
    return sorted(sorted(filter(_rank, names), reverse=True), key=_rank)
