"""What a lengths folder on disk holds, and whether a path may become one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from typing import Any

import pyarrow.parquet as pq

from packidx.errors import FormatError, OptionError
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.io import storage, urls
from packidx.io.copies import Part, local_copy, unsound_file
from packidx.records.shards import short_names

MANIFEST = "manifest.json"
# The last is the list that publishing to an object store leaves (`packidx.io.publish`).
_OWN_FILES = re.compile(r"manifest\.json|part-\d{5,}\.parquet|\.packidx-files\.json")


def check_place(path: str) -> dict[str, Any] | None:
    """The manifest of the lengths table at `path`, None where there is nothing; empty where it says
    nothing that can be relied on.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is no lengths table.
        OSError: it cannot be looked at.
    """
    if urls.is_url(path):
        return _check_stored(path)
    if not os.path.lexists(path):
        return None
    if not os.path.isdir(path):
        raise _is_file(path)
    names = sorted(os.listdir(path))
    if not names:
        return None
    manifest = _manifest(path) if MANIFEST in names else None
    if manifest is None:
        raise OptionError(
            f"{path} is not empty and no lengths table: it is left alone, so name another folder"
        )
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise _is_foreign(path, foreign[0])
    return manifest


def _check_stored(url: str) -> dict[str, Any] | None:
    """The same of a place in an object store: no manifest is there after a run was cut off."""
    from packidx.io.own_files import check_bucket, check_free

    if storage.is_file(url):
        raise _is_file(url)
    names, _ = check_free(url, "lengths table", schema.LENGTHS_FORMAT)
    if not names:
        check_bucket(url)
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise _is_foreign(url, foreign[0])
    return _manifest(url) if MANIFEST in names else None


def _is_file(path: str) -> OptionError:
    return OptionError(f"{path} is a file: name a folder for the lengths table")


def _is_foreign(path: str, name: str) -> OptionError:
    return OptionError(
        f"{path} also holds {name}, which packidx did not write: move it away, "
        "or name another folder"
    )


def is_complete(path: str, manifest: dict[str, Any]) -> bool:
    """Whether every file of the manifest is there with its size."""
    try:
        return unsound_file(path, manifest) is None
    except (OSError, KeyError, TypeError):
        return False


def _manifest(path: str) -> dict[str, Any] | None:
    """A lengths table's manifest, empty if damaged or of another version; None: no table."""
    place = urls.join(path, MANIFEST)
    try:
        return load(place, LengthsManifest, "estimate again")
    except (FormatError, OSError):
        return {} if _is_lengths(place) else None


def _is_lengths(place: str) -> bool:
    try:
        found = json.loads(storage.read(place))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == schema.LENGTHS_FORMAT


Rejected = tuple[str, str]
"""A source and a reason."""


def first_rejected(path: str, rejected: Collection[Rejected]) -> dict[Rejected, tuple[str, str]]:
    """Record (``shard#row``) and detail of the first row that a table has of each kind."""
    found: dict[Rejected, tuple[str, str]] = {}
    manifest = json.loads(storage.read(urls.join(path, MANIFEST)))
    names = short_names([shard["uri"] for shard in manifest["shards"]])
    for part in manifest["files"]:
        wanted = [kind for kind in rejected if kind not in found]
        if not wanted:
            break
        file = Part(urls.join(path, part["path"]), part["bytes"], part["sha256"])
        with local_copy(file) as copy:
            rows = pq.read_table(copy, columns=_EXAMPLE, filters=[_any_of(wanted)])
        firsts = rows.group_by(["source", "reason"], use_threads=False).aggregate(
            [(name, "first") for name in _EXAMPLE[2:]]
        )
        for row in firsts.to_pylist():
            if (kind := (row["source"], row["reason"])) in wanted:
                record = f"{names[row['shard_first']]}#{row['row_first']}"
                found[kind] = record, row["detail_first"]
    return found


_EXAMPLE = ["source", "reason", "shard", "row", "detail"]


def _any_of(wanted: Collection[Rejected]) -> tuple[str, str, list[str]]:
    return "reason", "in", sorted({reason for _, reason in wanted})
