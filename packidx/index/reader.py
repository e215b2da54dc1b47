"""Opening a snapshot: lazy, light, picklable."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, NotFoundInIndex
from packidx.index.snapshot import TABLES, read_head
from packidx.manifest import check_keys, load_manifest
from packidx.schema import INDEX_FORMAT

_KEYS = {
    "snapshot_id": str,
    "lengths": dict,
    "options": dict,
    "result": dict,
    "sources": list,
    "shards": list,
    "files": list,
}
_OPTIONS = {"capacity": int, "planned_capacity": int, "seed": int}
_RESULT = {
    **dict.fromkeys(("num_packs", "num_samples", "num_pieces", "num_tokens", "num_dropped"), int),
    "dropped": dict,
    "fill": float,
    "lower_bound": int,
    "bound": str,
    "gap": int,
    "windows": list,
}
_LENGTHS = {"uri": str, "fingerprint": str, "num_samples": int}
_FILE = {"path": str, "rows": int, "bytes": int, "sha256": str}


class Sample(NamedTuple):
    """One row of the samples table (FORMAT.md): a piece in a pack, and where its record lies."""

    pack_id: int
    position: int
    sample_id: int
    copy: int
    piece: int
    token_start: int
    start: int
    length: int
    padded_length: int
    label_tokens: int | None
    source: str | None
    key: str | None
    shard: int | None
    row: int | None
    offset: int | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Pack:
    """One pack: its row of the packs table and its samples in order of position."""

    pack_id: int
    stats: dict[str, Any]
    samples: list[Sample]


class RowGroups:
    """Random access to the rows of a table in several Parquet files, one row group at a time."""

    def __init__(self, paths: Sequence[Path], rows: Sequence[int], cached: int = 4) -> None:
        self._paths = paths
        self._file_starts = [sum(rows[:number]) for number in range(len(rows))]
        self.num_rows = sum(rows)
        self._open: dict[int, tuple[pq.ParquetFile, list[int]]] = {}
        self._cache: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._cached = cached

    def read(self, first: int, count: int) -> pa.Table:
        """Rows first .. first + count - 1, which must exist."""
        parts = []
        while count > 0:
            group, start = self._group_of(first)
            part = group.slice(first - start, count)
            parts.append(part)
            first, count = first + part.num_rows, count - part.num_rows
        return pa.concat_tables(parts) if len(parts) != 1 else parts[0]

    def _group_of(self, row: int) -> tuple[pa.Table, int]:
        """The decoded row group that holds `row`, and the row it begins with."""
        number = bisect_right(self._file_starts, row) - 1
        file, starts = self._file(number)
        at = bisect_right(starts, row - self._file_starts[number]) - 1
        key = number, at
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            path = self._paths[number]
            self._cache[key] = _readable(path, lambda _: file.read_row_group(at, use_threads=False))
            if len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        return self._cache[key], self._file_starts[number] + starts[at]

    def _file(self, number: int) -> tuple[pq.ParquetFile, list[int]]:
        if number not in self._open:
            file = _readable(self._paths[number], pq.ParquetFile, memory_map=True)
            starts, total = [], 0
            for group in range(file.metadata.num_row_groups):
                starts.append(total)
                total += file.metadata.row_group(group).num_rows
            self._open[number] = file, starts
        return self._open[number]


def _readable(path: Path, read: Callable[..., Any], **options: Any) -> Any:
    """``read(path)``, its errors as a FormatError that names the file."""
    try:
        return read(path, **options)
    except (pa.ArrowException, OSError) as error:
        words = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{path} is damaged or missing ({words}): `packidx verify` tells more; plan again"
        ) from None


class Index:
    """A snapshot of a pack index, read lazily; pickles as its path.

    Attributes:
        path: folder of the index.
        id: snapshot id.
        manifest: the snapshot's manifest.json.
        roots: ``{old: new}`` path prefixes, for data that has moved since it was planned.
    """

    def __init__(self, path: str, ident: str, roots: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.id = ident
        self.roots = dict(roots or {})
        self.manifest = read_manifest(self.folder)

    def __reduce__(self) -> tuple[type[Index], tuple[str, str, dict[str, str]]]:
        return Index, (self.path, self.id, self.roots)

    def __repr__(self) -> str:
        return f"Index({self.path}@{self.id[:12]}, {self.num_packs} packs)"

    @property
    def folder(self) -> Path:
        """The snapshot's own folder."""
        return Path(self.path) / "snapshots" / self.id

    @property
    def num_packs(self) -> int:
        return int(self.manifest["result"]["num_packs"])

    @property
    def num_samples(self) -> int:
        """Samples that are in a pack."""
        return int(self.manifest["result"]["num_samples"])

    @property
    def capacity(self) -> int:
        """Tokens a pack may hold."""
        return int(self.manifest["options"]["capacity"])

    def files(self, table: str) -> list[Path]:
        """Paths of one table's Parquet files, in order."""
        return [self.folder / part["path"] for part in self._parts(table)]

    def packs(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The packs table (schema: FORMAT.md), whole or some columns."""
        return self._table("packs", columns)

    def samples(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The samples table (schema: FORMAT.md), whole or some columns."""
        return self._table("samples", columns)

    def dropped(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The dropped table (schema: FORMAT.md), whole or some columns."""
        return self._table("dropped", columns)

    def window(self, table: str, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one window in ``'packs'``, ``'samples'`` or ``'dropped'``."""
        parts = [part for part in self._parts(table) if part.get("window", 0) == number]
        paths = [self.folder / part["path"] for part in parts]
        return self._read(table, paths, columns)

    def pack(self, pack_id: int) -> Pack:
        """Pack number `pack_id` with its samples; decodes one row group of each table.

        Raises:
            IndexError: there is no such pack.
        """
        if not 0 <= pack_id < self.num_packs:
            raise IndexError(f"pack {pack_id}: {self.path} has packs 0 to {self.num_packs - 1}")
        stats = self._pack_rows.read(pack_id, 1).to_pylist()[0]
        rows = self._sample_rows.read(stats["first_row"], stats["num_samples"])
        samples = [Sample(**row) for row in rows.to_pylist()]
        return Pack(pack_id, stats, samples)

    def resolve(self, uri: str) -> str:
        """`uri` with the longest matching prefix of `roots` exchanged."""
        for old in sorted(self.roots, key=len, reverse=True):
            prefix = old.rstrip("/")
            if uri in (prefix, old) or uri.startswith(prefix + "/"):
                rest = uri[len(prefix) :].lstrip("/")
                new = self.roots[old].rstrip("/") or "/"
                return f"{new.rstrip('/')}/{rest}" if rest else new
            if prefix == "." and not os.path.isabs(uri) and "://" not in uri:
                return os.path.join(self.roots[old], uri.removeprefix("./"))
        return uri

    @cached_property
    def _pack_rows(self) -> RowGroups:
        return self._row_groups("packs")

    @cached_property
    def _sample_rows(self) -> RowGroups:
        return self._row_groups("samples")

    def _row_groups(self, table: str) -> RowGroups:
        return RowGroups(self.files(table), [part["rows"] for part in self._parts(table)])

    def _parts(self, table: str) -> list[dict[str, Any]]:
        return [p for p in self.manifest["files"] if p["path"].startswith(f"{table}-")]

    def _table(self, table: str, columns: Sequence[str] | None) -> pa.Table:
        return self._read(table, self.files(table), columns)

    def _read(self, table: str, paths: list[Path], columns: Sequence[str] | None) -> pa.Table:
        schema = TABLES[table]
        wanted = list(columns) if columns is not None else schema.names
        unknown = [name for name in wanted if name not in schema.names]
        if unknown:
            raise NotFoundInIndex(
                f"{table} has no column {unknown[0]!r}: it has {', '.join(schema.names)}"
            )
        empty = schema.empty_table().select(wanted)
        parts = [_readable(path, pq.read_table, columns=wanted) for path in paths]
        return pa.concat_tables(parts) if parts else empty


def open_index(path: str | Path | Index, roots: Mapping[str, str] | None = None) -> Index:
    """Open the newest snapshot of an index, or ``path@ID`` (a unique beginning of the id serves).

    Raises:
        NotFoundInIndex: no index, no such snapshot, or the beginning is not unique.
        FormatError: a manifest that is broken or of a newer version.
    """
    if isinstance(path, Index):
        return Index(path.path, path.id, {**path.roots, **(roots or {})}) if roots else path
    folder, wanted = _split(str(path))
    if not (Path(folder) / "snapshots").is_dir():
        what = "does not exist" if not Path(folder).exists() else "is no pack index"
        raise NotFoundInIndex(f"{folder} {what}: make one with `packidx plan LENGTHS -o {folder}`")
    known = snapshot_ids(folder)
    if wanted is None:
        head = read_head(Path(folder))
        if head is None or head not in known:
            state = "has no HEAD yet" if head is None else f"has HEAD at {head}, which is not there"
            raise NotFoundInIndex(f"{folder} {state}: run `packidx plan LENGTHS -o {folder}` again")
        return Index(folder, head, roots)
    found = [ident for ident in known if ident.startswith(wanted)] if wanted else []
    if len(found) != 1:
        what = "no snapshot" if not found else f"{len(found)} snapshots"
        raise NotFoundInIndex(f"{folder} has {what} {wanted!r}: see `packidx log {folder}`")
    return Index(folder, found[0], roots)


def _split(path: str) -> tuple[str, str | None]:
    folder, at, ident = path.rpartition("@")
    if at and not Path(path).exists():
        return folder, ident
    return path, None


def snapshot_ids(folder: str | Path) -> list[str]:
    """Ids of all complete snapshots of an index, sorted."""
    manifests = (Path(folder) / "snapshots").glob("*/manifest.json")
    return sorted(path.parent.name for path in manifests if not path.parent.name.startswith("."))


def read_manifest(folder: Path) -> dict[str, Any]:
    """A snapshot's manifest, checked for format and version.

    Raises:
        FormatError: not JSON, not ours, or written by a newer packidx.
    """
    path = folder / "manifest.json"
    manifest = load_manifest(path, INDEX_FORMAT, _KEYS, "plan again")
    check_keys(path, manifest["options"], _OPTIONS, "plan again")
    check_keys(path, manifest["result"], _RESULT, "plan again")
    check_keys(path, manifest["lengths"], _LENGTHS, "plan again")
    for part in manifest["files"]:
        check_keys(path, part, _FILE, "plan again")
    return manifest
