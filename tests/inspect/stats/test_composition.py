"""What packs are made of, against the definitions."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.stats import sample_stats
from packidx.inspect.stats import stats as module
from packidx.inspect.stats.stats import source_distance
from packidx.pack.counts import exact_dot

SAMPLE = st.tuples(st.integers(1, 50), st.integers(0, 3))
PACKS = st.lists(st.lists(SAMPLE, min_size=1, max_size=8), min_size=1, max_size=20)
Packs = list[list[tuple[int, int]]]


def flattened(packs: Packs) -> list[tuple[int, int]]:
    return [sample for pack in packs for sample in pack]


def shares(samples: list[tuple[int, int]]) -> np.ndarray:
    tokens = np.zeros(4)
    for length, source in samples:
        tokens[source] += length
    return np.array(tokens / tokens.sum())


def distance(packs: Packs) -> float:
    """Mean total variation distance of token shares from those of all packs, by definition."""
    whole = shares(flattened(packs))
    return float(np.mean([np.abs(shares(pack) - whole).sum() / 2 for pack in packs]))


def measured(packs: Packs) -> dict[str, float | None]:
    """What is measured of packs of samples with a length and a source each."""
    rows = [
        {"pack_id": number, "position": at, "length": length, "source": str(source)}
        for number, pack in enumerate(packs)
        for at, (length, source) in enumerate(pack)
    ]
    held = [{"pack_id": at, "num_samples": len(pack)} for at, pack in enumerate(packs)]
    with duckdb.connect() as connection:
        for name, listed in (("samples", rows), ("packs", held)):
            connection.register(name, pa.Table.from_pylist(listed))
        return source_distance(connection)


@given(PACKS)
def test_source_distances_are_those_of_the_shares(packs: Packs) -> None:
    found = measured(packs)
    assert found["mean"] == pytest.approx(distance(packs), abs=1e-8)
    assert found["random"] is not None and 0 <= found["random"] < 1


def test_packs_of_one_source_are_as_far_from_the_whole_as_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    length = rng.integers(10, 1000, 16_000).tolist()
    apart = [[(length[8 * at + k], at // 500) for k in range(8)] for at in range(2000)]
    found = measured(apart)
    assert found["mean"] == pytest.approx(0.75, abs=1e-2)
    assert found["random"] and found["random"] < 0.45 * 0.75
    flat = flattened(apart)
    order = rng.permutation(len(flat))
    mixed = [[flat[at] for at in order[start : start + 8]] for start in range(0, len(flat), 8)]
    again = measured(mixed)
    assert again["mean"] == pytest.approx(again["random"], rel=0.1)
    monkeypatch.setattr(module, "_DEALT_ROWS", 8000)
    some = measured(mixed)
    assert some["mean"] == again["mean"] and some["random"] != again["random"]
    assert some["random"] == pytest.approx(again["random"], rel=0.1)


def planned(folder: Path, lengths: list[int], **options: Any) -> Index:
    table = {"length": lengths, "source": [("a", "b", None)[n % 3] for n in lengths]}
    pq.write_table(pa.table(table), folder / "l.parquet")
    plan_packs(folder / "l.parquet", folder / "i", capacity=100, **options)
    return open_index(folder / "i")


@pytest.mark.parametrize("options", [{}, {"max_samples": 2}, {"on_long": "split"}, {"epochs": 2}])
def test_lengths_and_sizes_of_a_plan(tmp_path: Path, options: dict[str, Any]) -> None:
    index = planned(tmp_path, [1 + at * 7919 % 140 for at in range(300)], **options)
    found = sample_stats(index)["composition"]
    packs = [index.pack(number).samples for number in range(index.num_packs)]
    pairs = [(a.length, b.length) for pack in packs for a, b in permutations(pack, 2)]
    expected = np.corrcoef(np.array(pairs, float).T)[0, 1]
    assert found["length_correlation"] == pytest.approx(expected, abs=1e-9)
    sizes = sorted(len(pack) for pack in packs)
    assert found["samples_per_pack"] == {
        "min": sizes[0],
        "p50": sizes[-(-len(sizes) * 50 // 100) - 1],
        "p95": sizes[-(-len(sizes) * 95 // 100) - 1],
        "max": sizes[-1],
        "mean": sum(sizes) / len(sizes),
    }
    whole = Counter[str | None]()
    for pack in packs:
        for sample in pack:
            whole[sample.source] += sample.length
    apart = []
    for pack in packs:
        own = Counter[str | None]()
        for sample in pack:
            own[sample.source] += sample.length
        of_pack = {name: own[name] / own.total() - whole[name] / whole.total() for name in whole}
        apart.append(sum(map(abs, of_pack.values())) / 2)
    assert found["source_distance"]["mean"] == pytest.approx(np.mean(apart), abs=1e-8)


def test_without_sources_or_packs_there_is_nothing_to_say(tmp_path: Path) -> None:
    pq.write_table(pa.table({"length": [5]}), tmp_path / "bare.parquet")
    plan_packs(tmp_path / "bare.parquet", tmp_path / "i", capacity=100)
    found = sample_stats(open_index(tmp_path / "i"))["composition"]
    assert found["length_correlation"] is None and found["source_distance"] is None
    assert found["samples_per_pack"] == dict.fromkeys(("min", "p50", "p95", "max", "mean"), 1)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=10))
def test_exact_dot_is_exact(rows: list[tuple[int, int]]) -> None:
    a, b = np.array(rows, np.int64).reshape(-1, 2).T
    assert exact_dot(a, b) == sum(x * y for x, y in rows)
