"""What packs are made of, against the definitions."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.stats import plan_stats
from packidx.pack.counts import exact_dot


def planned(folder: Path, lengths: list[int], **options: Any) -> Index:
    table = {"length": lengths, "source": [("a", "b", None)[n % 3] for n in lengths]}
    pq.write_table(pa.table(table), folder / "l.parquet")
    plan_packs(folder / "l.parquet", folder / "i", capacity=100, **options)
    return open_index(folder / "i")


@pytest.mark.parametrize("options", [{}, {"max_samples": 2}, {"on_long": "split"}])
def test_the_correlation_of_lengths_is_that_of_all_pairs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    index = planned(tmp_path, [1 + at * 7919 % 140 for at in range(300)], **options)
    found = plan_stats(index)["length_correlation"]
    packs = [index.pack(number).samples for number in range(index.num_packs)]
    pairs = [(a.length, b.length) for pack in packs for a, b in permutations(pack, 2)]
    expected = np.corrcoef(np.array(pairs, float).T)[0, 1]
    assert found == pytest.approx(expected, abs=1e-9)


def test_one_pack_has_no_correlation(tmp_path: Path) -> None:
    pq.write_table(pa.table({"length": [5]}), tmp_path / "bare.parquet")
    plan_packs(tmp_path / "bare.parquet", tmp_path / "i", capacity=100)
    assert plan_stats(open_index(tmp_path / "i"))["length_correlation"] is None


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=10))
def test_exact_dot_is_exact(rows: list[tuple[int, int]]) -> None:
    a, b = np.array(rows, np.int64).reshape(-1, 2).T
    assert exact_dot(a, b) == sum(x * y for x, y in rows)
