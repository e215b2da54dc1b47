"""Opening snapshots: lazily, by id, from another place; a flipped bit gives no other rows."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import file_of, path_of, refresh, sign
from small_packs import make_index, record

from packidx import open_index, plan_packs
from packidx.errors import FormatError, NotFoundInIndex, PackidxError
from packidx.index import Index, PlannedPack, PlannedSample


@pytest.fixture
def index(tmp_path: Path) -> Index:
    rng = np.random.default_rng(0)
    table = pa.table({"length": rng.integers(1, 300, 9000)})
    pq.write_table(table, tmp_path / "lengths.parquet")
    plan_packs(tmp_path / "lengths.parquet", tmp_path / "index", capacity=512)
    return open_index(tmp_path / "index")


@pytest.fixture
def in_pieces(tmp_path: Path) -> Index:
    """An index of several windows with locators, some of them null."""
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
    plan_packs(tmp_path / "lengths.parquet", tmp_path / "pieces", capacity=512, window=400)
    return open_index(tmp_path / "pieces")


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


FLIPS = 1000


@pytest.fixture
def small_index(tmp_path: Path) -> Index:
    chats = [record(n, [5 + n % 7, (4, 4), 3] if n % 3 else [60]) for n in range(300)]
    return make_index(tmp_path, {"öne": chats, "two": chats[:50]}, capacity=48, on_long="drop")


def flip(folder: Path, other: Path, rng: random.Random) -> str:
    """Make a copy of `folder` with a bit flipped in one of its files; returns its name."""
    shutil.copytree(folder, other, copy_function=os.link)
    files = [path for path in other.rglob("*") if path.is_file() and path.name != ".lock"]
    chosen = rng.choice(sorted(files))
    data = bytearray(chosen.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    chosen.unlink()
    chosen.write_bytes(bytes(data))
    return chosen.name


def looked_up(small_index: Index) -> Any:
    return [small_index.pack(number) for number in range(small_index.num_packs)]


def whole(small_index: Index) -> Any:
    return [
        table.to_pylist()
        for table in (small_index.packs(), small_index.samples(), small_index.dropped())
    ]


def test_a_flip_in_an_index_gives_the_same_rows_or_one_named_error(
    small_index: Index, tmp_path: Path
) -> None:
    """In each kind of file: HEAD, manifest, packs, samples, dropped."""
    expected = {"looked up": looked_up(small_index), "whole": whole(small_index)}
    found: Counter[str] = Counter()
    for number in range(FLIPS):
        place = tmp_path / f"{number}"
        name = flip(Path(small_index.path), place, random.Random(number))
        for how, reading in (("looked up", looked_up), ("whole", whole)):
            try:
                rows = reading(open_index(place))
            except PackidxError as error:
                assert "\n" not in str(error) and name in str(error), number
                found[f"{name.partition('-')[0]} {how}"] += 1
            else:
                assert rows == expected[how], number
    assert found["packs whole"] and found["samples looked up"] and found["HEAD whole"]


def test_a_flip_in_lengths_is_never_planned(small_index: Index, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths"
    for number in range(40):
        folder = tmp_path / f"lengths-{number}"
        flip(lengths, folder, random.Random(number))
        with pytest.raises(PackidxError) as caught:
            plan_packs(folder, tmp_path / "other", capacity=48)
        assert "\n" not in str(caught.value)
    assert plan_packs(lengths, tmp_path / "other", capacity=48).snapshot_id == small_index.id
