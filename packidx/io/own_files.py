"""Folders of output: what may be written where; a place that cannot be listed is an OSError."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from packidx.digests import file_digest
from packidx.errors import OptionError
from packidx.io import storage, urls

_BEGUN = {"windows", ".lock"}  # in an index before its first snapshot
_BUCKETS = ("s3", "s3a", "gs", "gcs")  # stores whose URLs begin with a bucket that must be there

UNFINISHED = "unfinished"
"""Member of the manifest of an export that is being put into a folder."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of output, and how a folder of it is known; one kind never replaces another."""

    what: str
    """In words, such as ``lengths table``."""
    manifest: str
    """Name of its manifest."""
    format: str
    """`format` in its manifest."""
    parts: re.Pattern[str] | None = None
    """Names of its other files where each holds the first digits of the file's SHA-256 (a group
    ``digest``). Such an output can be replaced: new files never take the place of old ones, and the
    manifest is written last."""


def check_free(output: str, kind: Kind) -> None:
    """Refuse a place where no output of a kind can be written.

    Raises:
        OptionError: it is a file, holds something else, or an output that is never replaced.
    """
    _check_folder(output, kind.what)
    names = storage.names(output)
    if not names:
        check_bucket(output)
    check_manifest(output, names, kind)
    if kind.manifest not in names:
        _check_names(output, [name for name in names if not is_part(name, kind)], kind.what)


def check_manifest(output: str, names: Collection[str], kind: Kind) -> None:
    """Refuse a folder, which has files of these names, if its manifest must not be overwritten.

    Raises:
        OptionError: it is of something else, or of an output that is never replaced.
    """
    if kind.manifest not in names:
        return
    stated = read_json_object(urls.join(output, kind.manifest))
    if stated.get("format") != kind.format:
        raise _is_foreign(output, kind.manifest, kind.what)
    if kind.parts is None and UNFINISHED not in stated:
        raise OptionError(
            f"{output} holds a {kind.what}, which is never overwritten: delete it, or name another "
            "folder"
        )


def is_part(name: str, kind: Kind) -> bool:
    """Return True if a file has the name of a part, which has a digest in it."""
    return kind.parts is not None and kind.parts.fullmatch(name) is not None


def remove_stale(output: str, kind: Kind, names: Collection[str], before: bytes = b"") -> None:
    """Delete the parts in a folder that are not among the files `names` of its manifest.

    On this machine, a file with the name of a part that has another content is somebody's, and
    stays, unless the manifest that was there `before` names it: then it was damaged.
    """
    stale = [each for each in storage.names(output) if is_part(each, kind) and each not in names]
    if urls.is_url(output):
        storage.overlapped(storage.remove, [urls.join(output, name) for name in stale])
        return
    for name in stale:
        path, match = os.path.join(output, name), kind.parts and kind.parts.fullmatch(name)
        if match is None or not os.path.isfile(path):
            continue
        if name.encode() in before or file_digest(path).startswith(match["digest"]):
            os.unlink(path)


def check_index(location: str) -> None:
    """Refuse a place where no index is or can be.

    Raises:
        OptionError: it is a file, holds other files, or has no bucket.
    """
    _check_folder(location, "index")
    names = storage.names(location)
    if "snapshots" not in names:
        _check_names(location, sorted({*names} - _BEGUN), "index")
    if not names:
        check_bucket(location)


def _check_folder(output: str, what: str) -> None:
    is_path = os.path.lexists(output) and not os.path.isdir(output)
    if storage.is_file(output) if urls.is_url(output) else is_path:
        raise OptionError(f"{output} is not a folder: name a folder for the {what}")


def _check_names(folder: str, names: list[str], what: str) -> None:
    if names:
        raise _is_foreign(folder, names[0], what)


def _is_foreign(folder: str, name: str, what: str) -> OptionError:
    return OptionError(f"{folder} holds {name}, which is of no {what}: name another folder")


def check_bucket(url: str) -> None:
    """Raise an OptionError if a store has no such bucket, before work is done."""
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


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or below it, wherever symbolic links lead."""
    return f"{_real(path)}/".startswith(f"{_real(folder).rstrip('/')}/")


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file; empty where it holds none."""
    try:
        value = json.loads(storage.read(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _real(path: str) -> str:
    return urls.absolute(path) if urls.is_url(path) else os.path.realpath(path)
