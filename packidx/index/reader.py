"""Opening a snapshot: lazy, light, picklable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, NotFoundInIndex
from packidx.index.row_groups import RowGroups, readable
from packidx.index.snapshot import OPTIONAL, TABLES, read_head
from packidx.manifest import check_keys, load_manifest
from packidx.schema import INDEX_FORMAT, PACKS

_KEYS = {
    "snapshot_id": str,
    "created": str,
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

# Bytes of decoded row groups that a process keeps. An epoch's order goes through blocks of
# neighbouring packs: a step's lie in a row group or two, 0.4 MB of packs, 1 to 2.5 MB of samples.
_KEPT = {"packs": 2 << 20, "samples": 8 << 20}


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
    media: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """One pack: its row of the packs table and its samples in order of position."""

    pack_id: int
    stats: dict[str, Any]
    samples: list[Sample]


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
        """Pack number `pack_id` with its samples.

        It costs microseconds where packs near it were asked for before, else one row group of each
        table is decoded; what is kept of them is bounded, however many packs are asked for.

        Raises:
            IndexError: there is no such pack.
            FormatError: a file is missing or damaged, or holds other rows than the pack's.
        """
        stats = self.stats(pack_id)
        first, count = stats["first_row"], stats["num_samples"]
        try:
            columns = self._sample_rows.read(first, count)
        except (IndexError, TypeError) as error:
            raise self._damaged(pack_id, f"its samples are {error}") from None
        if columns[0] != [pack_id] * count:
            raise self._damaged(pack_id, f"{count} samples from row {first} are of other packs")
        return Pack(pack_id, stats, list(map(Sample._make, zip(*columns, strict=True))))

    def stats(self, pack_id: int) -> dict[str, Any]:
        """The row of pack number `pack_id` in the packs table, without its samples.

        Raises:
            IndexError: there is no such pack.
            FormatError: a file is missing or damaged, or has another pack in its place.
        """
        if not 0 <= pack_id < self.num_packs:
            raise IndexError(f"pack {pack_id}: {self.path} has packs 0 to {self.num_packs - 1}")
        try:
            found = [column[0] for column in self._pack_rows.read(pack_id, 1)]
        except IndexError as error:
            raise self._damaged(pack_id, f"it should be in {error}") from None
        if found[0] != pack_id:
            raise self._damaged(pack_id, f"pack {found[0]} is in its place")
        return dict(zip(PACKS.names, found, strict=True))

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

    def _damaged(self, pack_id: int, what: str) -> FormatError:
        return FormatError(
            f"{self.folder} is damaged at pack {pack_id} ({what}): `packidx verify` tells more;"
            " plan again"
        )

    @cached_property
    def _pack_rows(self) -> RowGroups:
        return self._row_groups("packs")

    @cached_property
    def _sample_rows(self) -> RowGroups:
        return self._row_groups("samples")

    def _row_groups(self, table: str) -> RowGroups:
        rows = [part["rows"] for part in self._parts(table)]
        names, absent = TABLES[table].names, OPTIONAL[table]
        return RowGroups(self.files(table), rows, names, _KEPT[table], optional=absent)

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

        def read(path: Path) -> pa.Table:
            rows = pq.ParquetFile(path).read(columns=wanted)
            for name in OPTIONAL[table]:
                if name in wanted and name not in rows.column_names:
                    field = schema.field(name)
                    rows = rows.append_column(field, pa.nulls(len(rows), field.type))
            return rows.select(wanted)

        empty = schema.empty_table().select(wanted)
        return pa.concat_tables([empty, *(readable(path, read) for path in paths)])


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
    for table in TABLES:
        if not any(part["path"].startswith(f"{table}-") for part in manifest["files"]):
            raise FormatError(f"{path} names no file of {table}; plan again")
    return manifest
