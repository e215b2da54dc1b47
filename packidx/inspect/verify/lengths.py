"""Whether the lengths table, where it is still there, is the one that was planned."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import column_digest
from packidx.errors import FormatError, PackidxError, missing_package
from packidx.format.lengths import LengthsManifest, columns_digest
from packidx.format.manifest import load
from packidx.format.parquet import conform
from packidx.format.schema import ALL_LENGTHS, LENGTHS
from packidx.index import Index
from packidx.inspect.verify.check import Check, few, not_checked, number_of, short
from packidx.inspect.verify.snapshot import digest_fault, size_fault
from packidx.io import storage, urls
from packidx.io.copies import StoredFile, content_of, local_copy, overlapped, sizes

_NAME = "lengths table"


def check_lengths(index: Index) -> Check:
    """Hash the files and the values of the table that the plan names."""
    planned = index.snapshot.lengths
    folder = index.resolve(planned.uri).rstrip("/") or "/"
    if not _is_there(folder, planned.pattern):
        return not_checked(_NAME, f"{folder} is not there")
    path = urls.join(folder, "manifest.json")
    if planned.pattern or not storage.is_file(path):
        return _check_bare(index, folder)
    try:
        manifest = load(path, LengthsManifest, "estimate again")
    except FormatError as error:
        return Check(_NAME, False, str(error))
    if manifest.fingerprint == planned.fingerprint:
        return _check_files(folder, manifest)
    if _goes_on(index, manifest):
        added = number_of(len(manifest.shards) - len(index.snapshot.shards), "shards")
        return not_checked(_NAME, f"{folder} goes on with {added} after those that were planned")
    return _other(folder, manifest.fingerprint, planned.fingerprint)


def _is_there(uri: str, is_pattern: bool) -> bool:
    return storage.exists(uri) or (is_pattern and bool(storage.glob(uri)))


def _other(folder: str, actual: str, planned: str) -> Check:
    said = f"fingerprint {short(actual)}…, planned was {short(planned)}…"
    return Check(_NAME, False, f"{folder} is another table ({said}): plan again")


def _check_files(folder: str, manifest: LengthsManifest) -> Check:
    """The table's files have the bytes and the values that its manifest, the planned one, says."""
    parts = [file.within(folder) for file in manifest.files]
    there = sizes([part.path for part in parts])
    faults = [size_fault(part, size) for part, size in zip(parts, there, strict=True)]
    if not any(faults):
        contents = overlapped(content_of, [part.path for part in parts])
        hashed = sum(content.nbytes for content in contents)
        faults = [digest_fault(part, read) for part, read in zip(parts, contents, strict=True)]
    if any(faults):
        return Check(_NAME, False, f"{few(filter(None, faults))}: estimate again")
    digests, rows = [], 0
    for part in parts:
        try:
            own, num_rows = _read(part)
        except (pa.ArrowException, OSError) as error:
            return Check(_NAME, False, f"{part.path} is no part of a lengths table ({error})")
        digests.append(own)
        rows += num_rows
    numbers = {"files": len(parts), "bytes_hashed": hashed, "rows_hashed": rows}
    names = ALL_LENGTHS.names[: max(len(LENGTHS.names), *(len(own) for own in digests))]
    actual = columns_digest(names, digests)
    if actual != manifest.digests.columns:
        said = f"digest {short(actual)}…, planned was {short(manifest.digests.columns)}…"
        return Check(_NAME, False, f"{folder} has other values ({said}): plan again", numbers)
    read = f"{number_of(len(parts), 'files')}, {hashed:,} bytes, {number_of(rows, 'rows')} hashed"
    return Check(_NAME, True, f"{read}: the table that was planned", numbers)


def _read(part: StoredFile) -> tuple[list[str], int]:
    """Digests of a part's columns, and how many rows it has."""
    with local_copy(part) as copy:
        table = pq.read_table(copy)
    known = [name for name in ALL_LENGTHS.names if name in table.column_names]
    table = conform(table.select(known), pa.schema([ALL_LENGTHS.field(name) for name in known]))
    return [column_digest(column) for column in table.columns], table.num_rows


def _check_bare(index: Index, uri: str) -> Check:
    """The values of a table that has no manifest."""
    try:
        from packidx.lengths.table import read_lengths
    except ModuleNotFoundError as error:
        return not_checked(_NAME, str(missing_package("reading bare lengths", error)))
    planned = index.snapshot.lengths
    try:
        lengths = read_lengths(uri)
        actual = lengths.fingerprint()
    except PackidxError as error:
        return Check(_NAME, False, str(error))
    if actual != planned.fingerprint:
        return _other(uri, actual, planned.fingerprint)
    numbers = {"files": len(lengths.files), "rows_hashed": lengths.num_samples}
    hashed = f"{number_of(len(lengths.files), 'files')}, {lengths.num_samples:,} rows hashed"
    return Check(_NAME, True, f"{hashed}: the table that was planned", numbers)


def _goes_on(index: Index, lengths: LengthsManifest) -> bool:
    """Whether `lengths` has the planned shards and more after them."""
    planned, now = index.snapshot.shards, lengths.shards
    names = ("fingerprint", "rows", "source")
    return 0 < len(planned) < len(now) and all(
        getattr(old, name) == getattr(new, name)
        for old, new in zip(planned, now, strict=False)
        for name in names
    )
