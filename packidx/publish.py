"""Putting a finished folder into an object store, in an order in which no reader sees half of it.

A store has no folders to exchange. What a reader begins with (a manifest, an export's metadata) is
deleted first and written last, so that meanwhile there is nothing to begin with.
`.packidx-files.json` in the folder lists what packidx has put there: nothing else is ever
overwritten or deleted, and a run that was cut off is known by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from packidx import cache, storage
from packidx.copies import overlapped
from packidx.errors import OptionError
from packidx.files import digest

LIST = ".packidx-files.json"
"""Names the files that packidx has put into a folder of a store."""

_FORMAT = "packidx-files"

# What a reader begins with, in the order in which it is written; all other files come before.
_ENTRIES = (".nv-meta", "metadataset.yaml", ".packidx.json", "manifest.json")
_BUCKETS = ("s3", "s3a", "gs", "gcs")  # stores whose URLs begin with a bucket that must be there

Told = Callable[[int, int], None]
"""``told(done, total)``: files that are uploaded."""


def home(url: str) -> str:
    """Path of this machine where what goes to `url` is built; the same in every run."""
    return os.path.join(cache.folder(), "staging", digest(storage.absolute(url).encode())[:32])


def check_bucket(url: str) -> None:
    """Refuse, before work is done, a bucket that is not there.

    Raises:
        OptionError: it is not.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _BUCKETS:
        return
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    try:
        storage.stat(bucket)
    except FileNotFoundError:
        raise OptionError(f"{url}: there is no bucket {bucket}: make it, or name another") from None
    except (IsADirectoryError, PermissionError):
        return  # it is there, or only parts of it may be asked for


def names_below(url: str) -> list[str]:
    """Names of all files below a folder of a store, relative to it, sorted.

    Raises:
        OSError: it cannot be listed.
    """
    root = None  # as the store writes it, which comes first
    found = []
    for here, _, names in storage.walk(url):
        root = here if root is None else root
        folder = here.removeprefix(root).strip("/")
        found += [f"{folder}/{name}" if folder else name for name in names]
    return sorted(found)


def check_free(url: str) -> tuple[list[str], set[str]]:
    """What is below `url`, and which names packidx has put there.

    Raises:
        OptionError: something else is there.
        OSError: the store cannot be asked.
    """
    there = names_below(url)
    known = _listed(url) if LIST in there else set()
    if not known.issuperset(there) and "manifest.json" in there:
        known |= _of_manifest(storage.join(url, "manifest.json"))
    foreign = [name for name in there if name not in known]
    if foreign:
        raise OptionError(
            f"{url} holds {foreign[0]}, which packidx did not write: move it away, or name another "
            "place"
        )
    return there, known


def publish(folder: str, url: str, told: Told | None = None) -> None:
    """Replace what packidx has at `url` by the files of `folder`.

    Raises:
        OptionError: something else is at `url`.
        OSError: the store cannot be written; the next run begins anew.
    """
    names = _files_of(folder)
    there, known = check_free(url)
    _write_list(url, sorted({*names, *known} - {LIST}))
    for name in reversed(_in_order(there)):
        storage.remove(storage.join(url, name))
    upload(folder, url, [name for name in names if not _rank(name)], told)
    kept = {*names, *filter(_rank, there), LIST}
    overlapped(storage.remove, [storage.join(url, name) for name in there if name not in kept])
    _write_list(url, names)
    upload_in_order(folder, url, _in_order(names))


def upload(folder: str, url: str, names: Sequence[str], told: Told | None = None) -> None:
    """Copy files of a folder into a store, several at a time.

    Raises:
        OSError: one cannot be read or written.
    """
    done = 0

    def put(file: tuple[str, str]) -> None:
        nonlocal done
        storage.upload(file[1], file[0])
        done += 1
        if told is not None:
            told(done, len(names))

    overlapped(put, [(storage.join(url, name), os.path.join(folder, name)) for name in names])


def upload_in_order(folder: str, url: str, names: Sequence[str]) -> None:
    """Copy files of a folder into a store, each when the one before is there.

    Raises:
        OSError: one cannot be read or written.
    """
    for name in names:
        storage.upload(os.path.join(folder, name), storage.join(url, name))


def _files_of(folder: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(here, name), folder).replace(os.sep, "/")
        for here, _, names in os.walk(folder)
        for name in names
    )


def _rank(name: str) -> int:
    """0 of a file that others lead to, else where it stands among those a reader begins with."""
    first = name.partition("/")[0]
    return _ENTRIES.index(first) + 1 if first in _ENTRIES else 0


def _in_order(names: Sequence[str]) -> list[str]:
    """Those that a reader begins with, as they are written: `.info` is `.nv-meta`'s last."""
    return sorted(sorted(filter(_rank, names), reverse=True), key=_rank)


def _listed(url: str) -> set[str]:
    """What the list of a folder names, and itself; nothing where it is no list of ours."""
    found = _json(storage.join(url, LIST))
    if found.get("format") != _FORMAT or not isinstance(found.get("files"), list):
        return set()
    return {LIST, *(name for name in found["files"] if isinstance(name, str))}


def _of_manifest(url: str) -> set[str]:
    """What a manifest of packidx names, and itself: a folder that was copied into the store."""
    found = _json(url)
    if not str(found.get("format")).startswith("packidx-"):
        return set()
    parts = found.get("files")
    paths = (one.get("path") for one in parts if isinstance(one, dict)) if parts else ()
    return {"manifest.json", *(path for path in paths if isinstance(path, str))}


def _json(url: str) -> dict[str, Any]:
    try:
        found = json.loads(storage.read(url))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_list(url: str, names: Sequence[str]) -> None:
    text = json.dumps({"format": _FORMAT, "version": 1, "files": list(names)}, indent=2)
    storage.write(storage.join(url, LIST), text.encode() + b"\n")
