"""What is ours at a place, and what is refused."""

from __future__ import annotations

import json
from typing import Any

from packidx.errors import OptionError
from packidx.io import storage, urls

LIST = ".packidx-files.json"
"""Names the files that packidx has put into a folder of a store."""

FORMAT = "packidx-files"
_BUCKETS = ("s3", "s3a", "gs", "gcs")  # stores whose URLs begin with a bucket that must be there


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
        if not storage.is_folder(bucket):  # old releases of s3fs have no `stat` of an empty bucket
            text = f"{url}: there is no bucket {bucket}: make it, or name another"
            raise OptionError(text) from None
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


def check_free(
    url: str, what: str, manifest_format: str | None = None
) -> tuple[list[str], set[str]]:
    """What is below `url`, and which names packidx has put there.

    Args:
        url: a folder of a store.
        what: what is to be written there; only the same kind of thing is ever replaced.
        manifest_format: the `format` of a ``manifest.json`` that names files of this kind, where
            there is one: a folder that was copied into the store is known by it.

    Raises:
        OptionError: something else is there.
        OSError: the store cannot be asked.
    """
    there = names_below(url)
    kind, known = _listed(url) if LIST in there else (what, set())
    if kind != what:
        raise OptionError(
            f"{url} holds a {kind}, and a {what} is to be written: name another place"
        )
    copied = manifest_format is not None and "manifest.json" in there
    if copied and not known.issuperset(there):
        known |= _of_manifest(urls.join(url, "manifest.json"), manifest_format)
    foreign = [name for name in there if name not in known]
    if foreign:
        raise OptionError(
            f"{url} holds {foreign[0]}, which packidx did not write: move it away, or name another "
            "place"
        )
    return there, known


def _listed(url: str) -> tuple[str, set[str]]:
    """The kind of thing that the list of a folder is of, and the names in it, its own included;
    no name where it is no list of ours."""
    found = read_json_object(urls.join(url, LIST))
    if found.get("format") != FORMAT or not isinstance(found.get("files"), list):
        return "folder of something else", set()
    names = {LIST, *(name for name in found["files"] if isinstance(name, str))}
    return str(found.get("kind", "folder of something else")), names


def _of_manifest(url: str, expected: str | None) -> set[str]:
    """What a manifest of this format names, and itself: a folder that was copied into the store."""
    found = read_json_object(url)
    if found.get("format") != expected:
        return set()
    parts = found.get("files")
    paths = (one.get("path") for one in parts if isinstance(one, dict)) if parts else ()
    return {"manifest.json", *(path for path in paths if isinstance(path, str))}


def read_json_object(url: str) -> dict[str, Any]:
    """The JSON object in a file of a store; empty where it holds none."""
    try:
        found = json.loads(storage.read(url))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_index(url: str) -> None:
    """Refuse a place where no index is or can be.

    Raises:
        OptionError: it is a file, holds other files, or has no bucket.
    """
    if storage.is_file(url):
        raise OptionError(f"{url} is a file: choose a folder for the index")
    there = storage.names(url)
    if not there:
        check_bucket(url)
    elif not {"snapshots", "HEAD"} & set(there):
        raise OptionError(f"{url} holds other files and is no index: choose a new folder")
