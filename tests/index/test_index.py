"""Opening snapshots: lazily, by id, from another place, in another process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import edit, file_of, path_of, refresh, sign

from packidx import open_index, plan_packs
from packidx.digests import file_digest
from packidx.errors import FormatError, NotFoundInIndex
from packidx.format.index import TableFile
from packidx.format.parquet import footer_crc, open_writer
from packidx.index import Index, PlannedPack, PlannedSample
from packidx.index.row_groups import RowGroups


@pytest.fixture
def index(tmp_path: Path) -> Index:
    rng = np.random.default_rng(0)
    table = pa.table({"length": rng.integers(1, 300, 9000)})
    pq.write_table(table, tmp_path / "lengths.parquet")
    plan_packs(tmp_path / "lengths.parquet", tmp_path / "index", capacity=512)
    return open_index(tmp_path / "index")


@pytest.fixture
def in_pieces(tmp_path: Path) -> Index:
    """An index with locators, some of them null, in files of 400 rows in row groups of 64."""
    rng = np.random.default_rng(0)
    size = 3000
    some = rng.random(size) < 0.3
    columns = {
        "length": rng.integers(1, 300, size),
        "source": pa.array(rng.choice(["läser", "b", "c"], size), mask=rng.random(size) < 0.1),
        "key": pa.array([f"key-{n}" for n in range(size)], mask=some),
        "offset": pa.array(rng.integers(0, 1 << 60, size), mask=~some),
        "row": np.arange(size),
    }
    pq.write_table(pa.table(columns), tmp_path / "lengths.parquet")
    plan_packs(tmp_path / "lengths.parquet", tmp_path / "pieces", capacity=512)
    index = open_index(tmp_path / "pieces")
    files = []
    for table in ("packs", "samples"):
        path = file_of(index, table)
        rows = pq.read_table(path)
        path.unlink()
        for number, start in enumerate(range(0, rows.num_rows, 400)):
            part = rows.slice(start, 400)
            path = path.with_name(f"{table}-{number:05d}.parquet")
            with open_writer(str(path), rows.schema) as writer:
                writer.write_table(part, row_group_size=64)
            entry = {"path": path.name, "rows": part.num_rows, "bytes": path.stat().st_size}
            files.append(entry | {"sha256": file_digest(path), "footer": crc_of(path)})
    edit(index, lambda manifest: manifest["windows"][0].update(files=files))
    return open_index(index.path)


def crc_of(path: Path) -> str:
    return footer_crc(pa.OSFile(str(path)))


def by_tables(index: Index) -> list[PlannedPack]:
    """All packs of an index, made of its whole tables."""
    samples: dict[int, list[PlannedSample]] = {}
    for row in index.samples().to_pylist():
        samples.setdefault(row["pack_id"], []).append(PlannedSample(**row))
    return [
        PlannedPack(row["pack_id"], row, samples[row["pack_id"]])
        for row in index.packs().to_pylist()
    ]


def test_packs_by_number_equal_the_tables(index: Index, in_pieces: Index) -> None:
    for one in (index, in_pieces):
        packs = by_tables(one)
        assert sum(len(pack.samples) for pack in packs) == one.num_samples
        order = np.random.default_rng(1).permutation(len(packs)).tolist()
        for number in [*order, *range(len(packs))]:
            assert one.pack(number) == packs[number]
            assert one.stats(number) == packs[number].stats
        for number in (-1, len(packs)):
            with pytest.raises(IndexError, match=f"packs 0 to {len(packs) - 1}"):
                one.pack(number)
    assert len(in_pieces.files("samples")) > 5 and len(in_pieces.files("packs")) > 1
    found = [sample for pack in by_tables(in_pieces) for sample in pack.samples]
    for name in ("source", "key", "offset"):  # else nothing is said of nulls among values
        assert 0 < sum(getattr(sample, name) is None for sample in found) < len(found)


def number_table(folder: Path, rows: list[int]) -> tuple[list[Path], list[TableFile]]:
    """Files whose column x counts on from 0, in row groups of 64, and what is said of them."""
    paths: list[Path] = []
    files, start = [], 0
    for number, n in enumerate(rows):
        part = pa.table({"x": pa.array(range(start, start + n), pa.int64())})
        paths.append(folder / f"{number}.parquet")
        with open_writer(str(paths[-1]), part.schema) as writer:
            writer.write_table(part, row_group_size=64)
        sha256, footer = file_digest(paths[-1]), crc_of(paths[-1])
        path, nbytes = paths[-1].name, paths[-1].stat().st_size
        files.append(TableFile(path=path, rows=n, bytes=nbytes, sha256=sha256, footer=footer))
        start += n
    return paths, files


def test_a_reader_keeps_a_bounded_part_of_the_index(tmp_path: Path) -> None:
    rows = [640] * 20
    groups = RowGroups(*number_table(tmp_path, rows), ["x"], 4 * 64 * 8, footer_bytes=4000)
    opened = []
    for first in range(0, sum(rows), 64):
        groups.read(first, 64)
        assert len(groups.decoded) <= 4
        opened.append(len(groups.opened))
    assert max(opened) < 6
    small = RowGroups(*number_table(tmp_path, rows), ["x"], 0, footer_bytes=0)
    for first in (0, 5000, 64, 70):
        assert small.read(first, 1) == [[first]]
        assert len(small.decoded) == len(small.opened) == 1


def test_opening_reads_the_manifest_alone(index: Index) -> None:
    paths = [file_of(index, table) for table in ("packs", "samples")]
    for path in paths:
        path.rename(path.with_suffix(".away"))
    opened = open_index(index.path)
    assert opened.num_packs == index.num_packs
    with pytest.raises(FormatError, match="packs-00000.parquet is damaged or missing"):
        opened.pack(0)
    for path in paths:
        path.with_suffix(".away").rename(path)
    assert opened.pack(0) == by_tables(index)[0]


def rolled(table: pa.Table) -> pa.Table:
    """Every row where the one before was."""
    return pa.concat_tables([table.slice(1), table.slice(0, 1)])


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("packs", rolled, "damaged at pack 0 \\(pack 1 of its window, not 0, is in its place\\)"),
        ("packs", lambda t: t.drop_columns("num_images"), "packs-00000.parquet lacks a column"),
        ("packs", lambda t: t.drop_columns("group"), "packs-00000.parquet lacks a column"),
        ("samples", rolled, "damaged at pack 0 .* samples from row 0 are of other"),
    ],
)
def test_a_pack_with_other_rows_is_refused(index: Index, name: str, change: Any, says: str) -> None:
    rewrite(index, name, change)
    with pytest.raises(FormatError, match=says):
        open_index(index.path).pack(0)


def test_an_opened_index_pickles_as_its_path(index: Index) -> None:
    index.pack(3)
    data = pickle.dumps(index)
    assert len(data) < 500
    assert pickle.loads(data).pack(3) == index.pack(3)


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere", "does not exist"), ("plain", "is not a pack index"), ("headless", "has no HEAD")]
    + [("lengths", "is a lengths table and no pack index: make one of it")],
)
def test_what_is_no_index_says_so(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "lengths").mkdir()
    (tmp_path / "lengths" / "manifest.json").write_text('{"format": "packidx-lengths"}')
    (tmp_path / "headless" / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFoundInIndex, match=says):
        open_index(tmp_path / name)


def test_newer_and_foreign_manifests_are_refused_by_name(index: Index) -> None:
    path = path_of(index)
    good = json.loads(path.read_text())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"version": 4}, "version 4, this packidx reads 3: upgrade packidx"),
        ({"version": 2}, "version 2, this packidx reads 3: plan again"),
        ({"version": "1"}, "version '1', this packidx reads 3: plan again"),
        ({"shards": None}, "`array`, got `null` - at `.*shards`"),
        ({"result": {}}, "missing required field `num_packs_without_labels` - at `.*result`"),
        ({"format": "iceberg"}, "format 'iceberg'"),
    ]
    for change, says in cases:
        path.write_text(json.dumps(sign(good | change)))
        with pytest.raises(FormatError, match=says):
            open_index(index.path)
    for text in ("", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(FormatError, match="not a valid index manifest"):
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


def rewrite(index: Index, name: str, change: Any) -> None:
    """Replace a table and its entry in the manifest: damage that no checksum shows."""
    path = file_of(index, name)
    pq.write_table(change(pq.read_table(path)), path)
    refresh(index)
