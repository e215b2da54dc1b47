"""Which files a path of lengths means."""

from __future__ import annotations

from typing import NamedTuple

from packidx.errors import FormatError, SourceError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.io import storage, urls
from packidx.io.copies import StoredFile
from packidx.io.own_files import LIST

HELP = (
    "make one with `packidx estimate SOURCE -o lengths/`, or give a Parquet file that has `length`"
)


class TableFiles(NamedTuple):
    """Where a lengths table lies."""

    manifest: str | None
    """Path of its manifest, which names its files; None for bare Parquet."""
    files: list[StoredFile]
    """Of bare Parquet."""
    is_pattern: bool


def find_table(uri: str, is_pattern: bool | None = None) -> TableFiles:
    """The files that `uri` means. What is there by that very name wins over a pattern.

    Args:
        is_pattern: of a path that a snapshot recorded, whether it was one then: a file whose name
            has marks, and which is gone, must not become others that match it.

    Raises:
        SourceError: nothing is there, it is being written, or it is no table.
        OSError: a store cannot be asked.
    """
    may_match = any(mark in uri for mark in "*?[") if is_pattern is None else is_pattern
    if may_match and not storage.exists(uri):
        matches = storage.glob(uri)
        if not matches:
            raise SourceError(f"{uri} matches no file; {HELP}")
        return TableFiles(None, [StoredFile(path) for path in matches], True)
    if storage.is_file(uri):
        return TableFiles(None, [StoredFile(uri)], False)
    manifest = urls.join(uri, "manifest.json")
    if storage.is_file(manifest):
        return TableFiles(manifest, [], False)
    names = storage.names(uri)
    if not names and not storage.exists(uri):
        raise SourceError(f"{uri} does not exist; {HELP}")
    if LIST in names:  # what is there may be parts of two tables
        raise SourceError(
            f"{uri} has no manifest.json yet: it is being written, or its run was cut off; run "
            "`packidx estimate` again"
        )
    tables = [name for name in names if name.endswith(".parquet")]
    if not tables:
        raise SourceError(
            f"{uri} is no lengths table: it holds no manifest.json and no Parquet; {HELP}"
        )
    return TableFiles(None, [StoredFile(urls.join(uri, name)) for name in tables], False)


class KnownTable(NamedTuple):
    """A lengths table, and what its manifest says."""

    manifest: LengthsManifest | None
    """None of bare Parquet."""
    files: list[StoredFile]


def known_table(
    uri: str, is_pattern: bool | None = None, fingerprint: str | None = None
) -> KnownTable:
    """The lengths table at `uri`, the one of a `fingerprint` where that is given.

    Args:
        is_pattern: as `find_table` has it.

    Raises:
        SourceError: there is none.
        FormatError: its manifest is broken, or another one is in its place.
        OSError: a store cannot be asked.
    """
    table = find_table(uri, is_pattern)
    if table.manifest is None:
        return KnownTable(None, table.files)
    manifest = load(table.manifest, LengthsManifest, "estimate again")
    if fingerprint is not None and manifest.fingerprint != fingerprint:
        raise FormatError(f"{uri} is not the table that was planned")
    return KnownTable(manifest, [file.within(uri) for file in manifest.files])
