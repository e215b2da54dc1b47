"""Indexes that cannot be read as they are: a sentence says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_packs import make_index, record
from torch_packs import SyntheticEncode

from packidx.errors import PackidxError
from packidx.index import open_index
from packidx.plan import plan_packs
from packidx.torch import PackedDataset


def test_a_dataset_names_the_damaged_file(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": [record(n, [5 + n % 7]) for n in range(300)]}, capacity=48)
    path = index.files("samples")[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(PackidxError, match="samples-00000.parquet is damaged .row group 0 has"):
        PackedDataset(index, lambda one: one)[0]


def test_a_bare_table_with_shards_of_its_own_locates_nothing(tmp_path: Path) -> None:
    """A snapshot of it has no shards: what a row calls one is nobody's."""
    make_index(tmp_path, {"all": [record(n, [5]) for n in range(9)]}, capacity=64)
    plan_packs(tmp_path / "lengths" / "part-00000.parquet", tmp_path / "bare", capacity=64)
    bare = open_index(tmp_path / "bare")
    assert bare.manifest["shards"] == [] and bare.pack(0).samples[0].shard is not None
    with pytest.raises(PackidxError, match="was planned from bare lengths and does not say where"):
        PackedDataset(bare, SyntheticEncode())[0]
