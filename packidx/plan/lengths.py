"""Reading lengths: our own table or any Parquet that has a `length` column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packidx.errors import FormatError, MismatchError, SourceError
from packidx.files import array_digest, canonical_json, digest
from packidx.manifest import check_keys, load_manifest, unsound_file
from packidx.schema import LENGTHS, LENGTHS_FORMAT

_METHODS = ("exact", "precomputed", "heuristic")  # strongest first
_KEYS = {"fingerprint": str, "files": list, "num_samples": int}
_COUNTED = {"name": str, "num_usable": int, "num_samples": int}  # of a calibration's sources
_CALIBRATED = {**_COUNTED, "estimated": list, "actual": list}
_HELP = (
    "make one with `packidx estimate SOURCE -o lengths/`, or give a Parquet file that has `length`"
)


@dataclass(frozen=True)
class Lengths:
    """Samples in ascending order of `sample_id`.

    Attributes:
        uri: the path as the user gave it.
        fingerprint: hex digest of the logical content, whatever order the rows were stored in.
        frame: the known columns that are present; `sample_id` always is.
        length: int64 [n], tokens; 0 where it is unknown or the row was rejected.
        manifest: the lengths manifest, None for a bare table.
    """

    uri: str
    fingerprint: str
    frame: pl.DataFrame
    length: NDArray[np.int64]
    manifest: dict[str, Any] | None

    @property
    def num_samples(self) -> int:
        return self.frame.height

    @cached_property
    def methods(self) -> dict[str, int]:
        """Usable rows by the method that counted them, strongest first; empty if nobody says."""
        if "method" not in self.frame.columns:
            return {}
        usable = self.frame.select("method", ok=_usable(self.frame)).filter("ok")
        found = dict(usable.get_column("method").drop_nulls().value_counts().rows())
        unknown = sorted(found.keys() - set(_METHODS))
        if unknown:
            raise FormatError(f"{self.uri}: method is {unknown[0]!r}, not one of {_METHODS}")
        return {name: found[name] for name in _METHODS if name in found}

    @property
    def weakest_method(self) -> str:
        """The least exact of the methods that counted the usable rows."""
        return max(self.methods, key=_METHODS.index, default="exact")

    @property
    def calibration(self) -> dict[str, Any] | None:
        """How far the lengths are off, where samples were encoded to see it (FORMAT.md)."""
        found: dict[str, Any] | None = (self.manifest or {}).get("calibration")
        if found is not None:
            path = Path(self.uri) / "manifest.json"
            check_keys(path, found, {"num_samples": int, "sources": list}, _HELP)
            for source in found["sources"]:
                check_keys(path, source, _CALIBRATED, _HELP)
        return found

    def ints(
        self, name: str, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Column `name` at `rows` as int64 with 0 for null, and where it is null."""
        if name not in self.frame.columns:
            return np.zeros(len(rows), np.int64), np.ones(len(rows), bool)
        column = self.frame.get_column(name)
        values = column.cast(pl.Int64).fill_null(0).to_numpy()[rows]
        if not column.null_count():
            return values, np.zeros(len(rows), bool)
        return values, column.is_null().to_numpy()[rows]

    def take(self, name: str, rows: NDArray[np.int64]) -> pa.Array:
        """Column `name` at `rows` in the type the schema gives it; nulls if it is absent."""
        kind = LENGTHS.field(name).type
        if name not in self.frame.columns:
            return pa.nulls(len(rows), kind)
        taken = self.frame.get_column(name).gather(rows.astype(np.uint32))
        return taken.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(kind)


def _usable(frame: pl.DataFrame) -> pl.Expr:
    return pl.col("status") == "ok" if "status" in frame.columns else pl.lit(True)


def read_lengths(uri: str) -> Lengths:
    """Open a lengths table, a folder or glob of Parquet files, or one Parquet file.

    Raises:
        SourceError: nothing is there, or it is no Parquet.
        FormatError: no usable `length` column, duplicate sample ids, a newer version.
        MismatchError: a part is not the one the manifest names.
    """
    manifest, files = _find(uri)
    try:
        frames = [_read_part(path) for path in files]
        frame = pl.concat(frames, how="diagonal_relaxed") if len(frames) > 1 else frames[0]
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{uri} cannot be read as Parquet ({reason}); {_HELP}") from None
    frame = _checked(frame, uri)
    length = frame.get_column("length").cast(pl.Int64).fill_null(0).to_numpy()
    if "status" in frame.columns:
        length = np.where(frame.get_column("status").fill_null("").to_numpy() == "ok", length, 0)
    fingerprint = manifest["fingerprint"] if manifest else _fingerprint(frame)
    return Lengths(uri, fingerprint, frame, np.maximum(length, 0), manifest)


def _find(uri: str) -> tuple[dict[str, Any] | None, list[Path]]:
    path = Path(uri)
    if any(mark in uri for mark in "*?[") and not path.exists():
        files = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not files:
            raise SourceError(f"{uri} matches no file; {_HELP}")
        return None, files
    if not path.exists():
        raise SourceError(f"{uri} does not exist; {_HELP}")
    if path.is_file():
        return None, [path]
    if (path / "manifest.json").is_file():
        return _read_manifest(path)
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise SourceError(
            f"{uri} is no lengths table: it holds no manifest.json and no Parquet; {_HELP}"
        )
    return None, files


def _read_manifest(folder: Path) -> tuple[dict[str, Any], list[Path]]:
    path = folder / "manifest.json"
    manifest = load_manifest(path, LENGTHS_FORMAT, _KEYS, _HELP)
    if wrong := unsound_file(folder, manifest):
        raise MismatchError(f"{wrong}: run `packidx estimate` again")
    return manifest, [folder / part["path"] for part in manifest["files"]]


def _read_part(path: Path) -> pl.DataFrame:
    present = set(pq.read_schema(path).names)
    wanted = [name for name in LENGTHS.names if name in present]
    return pl.read_parquet(path, columns=wanted, glob=False)


def _checked(frame: pl.DataFrame, uri: str) -> pl.DataFrame:
    if "length" not in frame.columns:
        raise FormatError(f"{uri} has no column `length`; {_HELP}")
    frame = frame.with_columns(_typed(frame.get_column(name), uri) for name in frame.columns)
    if "sample_id" not in frame.columns:
        return frame.with_columns(sample_id=pl.int_range(frame.height, dtype=pl.Int64))
    ids = frame.get_column("sample_id").cast(pl.Int64)
    if ids.null_count():
        raise FormatError(
            f"{uri}: {ids.null_count()} sample_id are null: give every sample its own"
        )
    frame = frame.with_columns(ids)
    if not ids.is_sorted():
        frame = frame.sort("sample_id")
        ids = frame.get_column("sample_id")
    steps = np.diff(ids.to_numpy())
    if len(steps) and not steps.all():
        twice = ids[int(np.argmin(steps))]
        raise FormatError(f"{uri}: sample_id {twice} stands there more than once: make them unique")
    return frame


def _typed(column: pl.Series, uri: str) -> pl.Series:
    """`column` if it is what the schema says, else an error that names it."""
    want = LENGTHS.field(column.name).type
    where = f"{uri}: column `{column.name}`"
    if pa.types.is_integer(want):
        if not (column.dtype.is_integer() or column.dtype == pl.Null):
            raise FormatError(f"{where} is {column.dtype}, not integer: cast it first")
        limit = 1 << (want.bit_width - 1)
        low, high = column.min(), column.max()
        for value in (low, high):
            if isinstance(value, int) and not -limit <= value < limit:
                raise FormatError(f"{where} holds {value}, which does not fit {want}: correct it")
        return column.cast(pl.Int64)
    if pa.types.is_string(want):
        if column.dtype not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            raise FormatError(f"{where} is {column.dtype}, not text: cast it first")
        return column.cast(pl.String)
    if column.dtype == pl.Null:
        return column
    names = {field.name for field in want.value_type}
    inner = column.dtype.inner if isinstance(column.dtype, pl.List) else None
    if not isinstance(inner, pl.Struct) or {field.name for field in inner.fields} != names:
        raise FormatError(
            f"{where} is {column.dtype}, not a list of structs as FORMAT.md has it: leave it out"
        )
    return column


def _fingerprint(frame: pl.DataFrame) -> str:
    """Digest of a bare table's known columns, sorted by sample_id, in the schema's types."""
    parts = []
    for name in LENGTHS.names:
        if name in frame.columns:
            column = frame.get_column(name).to_arrow(compat_level=pl.CompatLevel.oldest())
            kind = LENGTHS.field(name).type
            # int64 for every integer: a table stays the same when its writer narrows a type.
            column = column.cast(pa.int64() if pa.types.is_integer(kind) else kind)
            parts += [name, array_digest(column)]
    return digest(canonical_json(parts))
