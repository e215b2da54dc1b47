"""The views that SQL has of a snapshot or of a lengths table, and the files behind them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packidx.errors import FormatError, NotFoundInIndex, SourceError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.index import open_index
from packidx.io import urls
from packidx.io.copies import StoredFile, local_copies
from packidx.lengths.files import find_table

TABLES = ("packs", "samples", "dropped")


@dataclass(frozen=True)
class Views:
    """Files of this machine by the view that reads them."""

    files: dict[str, list[str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Why a view is not there."""


@contextlib.contextmanager
def views_of(path: str, roots: Mapping[str, str], query: str) -> Iterator[Views]:
    """What `query` may read of the index or the lengths table at `path`, as long as the block.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or what `packidx plan` takes for lengths.
        roots: ``{old: new}`` path prefixes, for data that has moved.
        query: tables in an object store that it does not name are left out, unless it names none.

    Raises:
        NotFoundInIndex: there is no index, and no lengths table.
        FormatError: a manifest that is broken or of a newer version.
        OSError: a store cannot be asked.
    """
    named = {name for name in (*TABLES, "lengths") if re.search(rf"\b{name}\b", query, re.I)}
    named = named or {*TABLES, "lengths"}
    views = Views()
    with contextlib.ExitStack() as stack:
        try:
            index = open_index(path, roots)
        except NotFoundInIndex:
            lengths = None
            with contextlib.suppress(SourceError):
                lengths = _lengths(urls.local_path(path))
            if lengths is None:
                raise
            views.files["lengths"] = stack.enter_context(local_copies(lengths))
            yield views
            return
        for name in TABLES:
            if name in named or not urls.is_url(index.path):
                views.files[name] = stack.enter_context(index.local_files(name))
        if "lengths" in named or not urls.is_url(index.resolve(index.snapshot.lengths.uri)):
            try:
                planned = index.snapshot.lengths
                uri = index.resolve(planned.uri)
                parts = _lengths(uri, planned.pattern, planned.fingerprint)
                views.files["lengths"] = stack.enter_context(local_copies(parts))
            except SourceError as error:
                why = f"{error}, or say where it is with --root OLD=NEW"
                views.absent["lengths"] = f"there is no view lengths: {why}"
            except FormatError as error:
                views.absent["lengths"] = f"there is no view lengths: {error}"
        yield views


def _lengths(
    uri: str, is_pattern: bool | None = None, fingerprint: str | None = None
) -> list[StoredFile]:
    """The files of a lengths table, of the one of a `fingerprint` where that is given.

    Raises:
        SourceError: there is none.
        FormatError: another one is in its place.
    """
    table = find_table(uri, is_pattern)
    if table.manifest is None:
        return table.files
    manifest = load(table.manifest, LengthsManifest, "estimate again")
    if fingerprint is not None and manifest.fingerprint != fingerprint:
        raise FormatError(f"{uri} is not the table that was planned")
    return [file.within(uri) for file in manifest.files]
