"""A snapshot against its own promises: files, sums, and every sample exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packidx.files import file_digest
from packidx.index.reader import Index
from packidx.index.snapshot import snapshot_id


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    detail: str


def verify_snapshot(index: Index) -> Iterator[Check]:
    """Check one snapshot; later checks are left out when its files cannot be read."""
    files = check_files(index)
    yield files
    if not files.ok:
        return
    tables = {"packs": index.packs(), "samples": index.samples(), "dropped": index.dropped()}
    checks: list[Callable[[Index, dict[str, pa.Table]], Check]] = [
        _check_id,
        _check_order,
        _check_sums,
        _check_capacity,
        _check_once,
        _check_result,
    ]
    for check in checks:
        yield check(index, tables)


def check_files(index: Index) -> Check:
    """Every file is there with the bytes, rows and SHA-256 that the manifest names."""
    wrong = []
    for part in index.manifest["files"]:
        path = index.folder / part["path"]
        if not path.is_file():
            wrong.append(f"{path} is missing")
        elif path.stat().st_size != part["bytes"]:
            wrong.append(
                f"{path} has {path.stat().st_size} bytes, the manifest says {part['bytes']}"
            )
        elif file_digest(path) != part["sha256"]:
            wrong.append(f"{path} has other content than the manifest's sha256")
        elif pq.read_metadata(path).num_rows != part["rows"]:
            wrong.append(f"{path} has other rows than the manifest's {part['rows']}")
    return _verdict(
        "files", wrong, f"{len(index.manifest['files'])} files as the manifest has them"
    )


def _check_id(index: Index, tables: dict[str, pa.Table]) -> Check:
    found = snapshot_id(index.manifest, tables)
    wrong = (
        [] if found == index.id else [f"the content gives id {found}, the folder says {index.id}"]
    )
    return _verdict("id", wrong, "the id is the digest of the content")


def _check_order(index: Index, tables: dict[str, pa.Table]) -> Check:
    packs, samples = tables["packs"], tables["samples"]
    first, sizes = _ints(packs, "first_row"), _ints(packs, "num_samples")
    wrong = []
    if not np.array_equal(_ints(packs, "pack_id"), np.arange(packs.num_rows)):
        wrong.append("pack ids are not dense from 0")
    if sizes.sum() != samples.num_rows or not np.array_equal(first, np.cumsum(sizes) - sizes):
        wrong.append("first_row and num_samples do not tile the samples table")
    else:
        if not np.array_equal(_ints(samples, "pack_id"), np.repeat(np.arange(len(sizes)), sizes)):
            wrong.append("samples are not sorted by pack_id")
        position = np.arange(samples.num_rows) - np.repeat(first, sizes)
        if not np.array_equal(_ints(samples, "position"), position):
            wrong.append("positions are not dense from 0 in every pack")
        padded = _ints(samples, "padded_length")
        end = np.cumsum(padded)
        begin = end - padded
        if not np.array_equal(_ints(samples, "start"), begin - np.repeat(begin[first], sizes)):
            wrong.append("samples do not follow each other without gap or overlap")
    return _verdict("order", wrong, "packs and positions dense, samples in order")


def _check_sums(index: Index, tables: dict[str, pa.Table]) -> Check:
    packs, samples = tables["packs"], tables["samples"]
    first = _ints(packs, "first_row")
    wrong = []
    for name in ("length", "padded_length", "label_tokens"):
        if packs[name].null_count:
            continue
        total = np.add.reduceat(_ints(samples, name), first)
        bad = np.flatnonzero(total != _ints(packs, name))
        if len(bad):
            wrong.append(
                f"pack {bad[0]}: {name} is not the sum over its samples ({len(bad)} packs)"
            )
    squares = np.add.reduceat(_ints(samples, "length") ** 2, first)
    if not np.array_equal(squares, _ints(packs, "attention_cost")):
        wrong.append("attention_cost is not the sum of squared lengths")
    return _verdict("sums", wrong, "pack counters are the sums over their samples")


def _check_capacity(index: Index, tables: dict[str, pa.Table]) -> Check:
    planned = index.manifest["options"]["planned_capacity"]
    padded = _ints(tables["packs"], "padded_length")
    over = np.flatnonzero(padded > planned)
    wrong = (
        [f"pack {over[0]} has {padded[over[0]]} tokens > {planned} ({len(over)} packs)"]
        if len(over)
        else []
    )
    return _verdict("capacity", wrong, f"no pack holds more than {planned} tokens")


def _check_once(index: Index, tables: dict[str, pa.Table]) -> Check:
    samples = tables["samples"].select(["sample_id", "copy", "piece"])
    placed = np.unique(_ints(samples, "sample_id"))
    dropped = _ints(tables["dropped"], "sample_id")
    wrong = []
    if samples.group_by(samples.column_names).aggregate([]).num_rows != samples.num_rows:
        wrong.append("a sample's piece stands in more than one place")
    if len(np.unique(dropped)) != len(dropped):
        wrong.append("a sample is dropped more than once")
    both = np.intersect1d(placed, dropped)
    if len(both):
        wrong.append(f"sample {both[0]} is both packed and dropped ({len(both)} samples)")
    if tables["dropped"]["reason"].null_count:
        wrong.append("a sample is dropped without a reason")
    expected = index.manifest["lengths"]["num_samples"]
    if len(placed) + len(dropped) != expected:
        wrong.append(f"{len(placed)} packed + {len(dropped)} dropped != {expected} samples")
    done = f"{len(placed)} packed + {len(dropped)} dropped = {expected} samples, each once"
    return _verdict("every sample once", wrong, done)


def _check_result(index: Index, tables: dict[str, pa.Table]) -> Check:
    result, packs = index.manifest["result"], tables["packs"]
    found = {
        "num_packs": packs.num_rows,
        "num_tokens": int(_ints(packs, "length").sum()),
        "num_dropped": tables["dropped"].num_rows,
        "num_samples": len(np.unique(_ints(tables["samples"], "sample_id"))),
    }
    wrong = [
        f"{k} is {v}, the manifest says {result[k]}" for k, v in found.items() if v != result[k]
    ]
    if result["lower_bound"] > packs.num_rows:
        wrong.append(f"lower bound {result['lower_bound']} is above {packs.num_rows} packs")
    return _verdict("result", wrong, "the manifest's result is what the tables hold")


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return values


def _verdict(name: str, wrong: list[str], done: str) -> Check:
    return Check(name, not wrong, "; ".join(wrong) or done)
