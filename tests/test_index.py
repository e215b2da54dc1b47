"""Opening snapshots: lazily, by id, from another place, in another process."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx import open_index, plan_packs
from packidx.errors import FormatError, NotFoundInIndex
from packidx.index import Index
from packidx.index.reader import RowGroups
from packidx.index.verify import verify_snapshot
from packidx.schema import open_writer


@pytest.fixture
def index(tmp_path: Path) -> Index:
    rng = np.random.default_rng(0)
    table = pa.table({"length": rng.integers(1, 300, 9000)})
    pq.write_table(table, tmp_path / "lengths.parquet")
    plan_packs(tmp_path / "lengths.parquet", tmp_path / "index", capacity=512)
    return open_index(tmp_path / "index")


def test_packs_by_number_equal_the_tables(index: Index) -> None:
    packs, samples = index.packs().to_pylist(), index.samples().to_pylist()
    for number in [0, 1, len(packs) // 2, len(packs) - 1]:
        pack = index.pack(number)
        assert pack.stats == packs[number]
        assert [s._asdict() for s in pack.samples] == [s for s in samples if s["pack_id"] == number]
    for number in (-1, len(packs)):
        with pytest.raises(IndexError, match=f"packs 0 to {len(packs) - 1}"):
            index.pack(number)


def test_row_groups_cross_files_and_groups(tmp_path: Path) -> None:
    rows = [700, 1, 299]
    paths, start = [], 0
    for number, n in enumerate(rows):
        part = pa.table({"x": pa.array(range(start, start + n), pa.int64())})
        paths.append(tmp_path / f"{number}.parquet")
        with open_writer(str(paths[-1]), part.schema) as writer:
            writer.write_table(part, row_group_size=64)
        start += n
    groups = RowGroups(paths, rows, cached=2)
    for first, count in [(0, 1), (63, 2), (60, 300), (698, 5), (999, 1), (0, 1000)]:
        found = groups.read(first, count)["x"].to_pylist()
        assert found == list(range(first, first + count))


def test_an_opened_index_pickles_as_its_path(index: Index) -> None:
    index.pack(3)
    data = pickle.dumps(index)
    assert len(data) < 500
    assert pickle.loads(data).pack(3) == index.pack(3)


def test_ids_may_be_shortened_but_not_ambiguous(index: Index, tmp_path: Path) -> None:
    path = index.path
    assert open_index(f"{path}@{index.id}").id == index.id
    assert open_index(f"{path}@{index.id[:8]}").id == index.id
    shutil.copytree(index.folder, index.folder.parent / (index.id[:-1] + "x"))
    with pytest.raises(NotFoundInIndex, match="2 snapshots"):
        open_index(f"{path}@{index.id[:8]}")
    for wrong in (f"{path}@zzz", f"{path}@"):
        with pytest.raises(NotFoundInIndex, match="no snapshot"):
            open_index(wrong)


def test_a_folder_may_have_an_at_sign_in_its_name(index: Index, tmp_path: Path) -> None:
    moved = tmp_path / "me@work"
    shutil.copytree(index.path, moved)
    assert open_index(moved).id == index.id
    assert open_index(f"{moved}@{index.id[:6]}").id == index.id


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere", "does not exist"), ("plain", "is no pack index"), ("headless", "has no HEAD")],
)
def test_what_is_no_index_says_so(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "headless" / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFoundInIndex, match=says):
        open_index(tmp_path / name)


def test_newer_and_foreign_manifests_are_refused_by_name(index: Index) -> None:
    path = index.folder / "manifest.json"
    good = json.loads(path.read_text())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"version": 2}, "version 2; this packidx knows up to 1"),
        ({"version": "1"}, "version '1', which is none"),
        ({"shards": None}, "shards = None, no list"),
        ({"result": {}}, "lacks num_packs"),
        ({"format": "iceberg"}, "format 'iceberg'"),
    ]
    for change, says in cases:
        path.write_text(json.dumps(good | change))
        with pytest.raises(FormatError, match=says):
            open_index(index.path)
    for text in ("", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(FormatError, match="no index manifest"):
            open_index(index.path)


@pytest.mark.parametrize(
    ("roots", "uri", "new"),
    [
        ({"/a": "/b"}, "/a/x.jsonl", "/b/x.jsonl"),
        ({"/a": "/b"}, "/ab/x.jsonl", "/ab/x.jsonl"),
        ({"/a/": "/b/"}, "/a/x", "/b/x"),
        ({"/a": "/b", "/a/deep": "/c"}, "/a/deep/x", "/c/x"),
        ({"data": "/mnt"}, "data", "/mnt"),
        ({"/": "/mnt"}, "/x", "/mnt/x"),
        ({}, "x", "x"),
    ],
)
def test_roots_exchange_whole_path_prefixes(
    index: Index, roots: dict[str, str], uri: str, new: str
) -> None:
    assert open_index(index, roots).resolve(uri) == new


def test_unknown_columns_are_named(index: Index) -> None:
    with pytest.raises(NotFoundInIndex, match="packs has no column 'size'"):
        index.packs(["size"])


def rewrite(index: Index, name: str, change: Any) -> None:
    """Replace a table and its entry in the manifest: damage that no checksum shows."""
    from packidx.files import file_digest

    path = index.folder / f"{name}-00000.parquet"
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    manifest = json.loads((index.folder / "manifest.json").read_text())
    entry = next(part for part in manifest["files"] if part["path"] == path.name)
    size = path.stat().st_size
    entry.update(rows=table.num_rows, bytes=size, sha256=file_digest(path))
    (index.folder / "manifest.json").write_text(json.dumps(manifest))


def replaced(column: str, row: int, value: int) -> Any:
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        at = table.column_names.index(column)
        return table.set_column(
            at, table.schema.field(at), pa.array(values, table.schema.field(at).type)
        )

    return change


@pytest.mark.parametrize(
    ("name", "change", "failing"),
    [
        ("samples", replaced("sample_id", 0, 5), {"id", "every sample once", "result"}),
        ("samples", replaced("length", 0, 600), {"id", "sums"}),
        ("samples", replaced("position", 0, 7), {"order"}),
        ("samples", replaced("start", 1, 7), {"order"}),
        ("packs", replaced("first_row", 1, 0), {"order", "sums"}),
        ("packs", replaced("attention_cost", 0, 1), {"sums"}),
        ("packs", replaced("padded_length", 0, 513), {"capacity", "sums"}),
        ("samples", lambda t: t.slice(0, t.num_rows - 1), None),
        ("packs", lambda t: t.slice(1), None),
    ],
)
def test_verify_finds_damage(
    index: Index, name: str, change: Any, failing: set[str] | None
) -> None:
    assert all(check.ok for check in verify_snapshot(index))
    rewrite(index, name, change)
    found = {c.name for c in verify_snapshot(open_index(index.path)) if not c.ok}
    assert found if failing is None else found == failing


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_verify_finds_damaged_files(index: Index, damage: str) -> None:
    path = index.folder / "samples-00000.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(bytes(data) if damage == "flip" else bytes(data[:-1]))
    [check] = list(verify_snapshot(index))
    assert not check.ok and path.name in check.detail
