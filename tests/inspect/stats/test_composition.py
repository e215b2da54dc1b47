"""What packs are made of, against the definitions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.hashing import derive_key
from packidx.inspect.stats import stats as module
from packidx.inspect.stats.stats import Composition
from packidx.pack.counts import exact_dot
from packidx.permutation import KeyedPermutation, permutation

SAMPLE = st.tuples(st.integers(1, 50), st.integers(0, 3))
PACKS = st.lists(st.lists(SAMPLE, min_size=1, max_size=8), min_size=1, max_size=20)
Packs = list[list[tuple[int, int]]]


def columns(packs: Packs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first_row = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    length, source = np.array([sample for pack in packs for sample in pack], np.int64).T
    return first_row, length, source


def composition(
    first_row: np.ndarray, length: np.ndarray, source: np.ndarray | None = None, seed: int = 0
) -> dict[str, object]:
    counted = Composition(seed)
    counted.add(first_row, length, source)
    return counted.result()


def distance(packs: Packs, whole: Packs) -> float:
    """Mean total variation distance of token shares from those of `whole`, by definition."""

    def shares(samples: list[tuple[int, int]]) -> np.ndarray:
        tokens = np.zeros(4)
        for length, source in samples:
            tokens[source] += length
        return np.array(tokens / tokens.sum())

    everything = shares(sum(whole, []))
    return float(np.mean([np.abs(shares(pack) - everything).sum() / 2 for pack in packs]))


@given(PACKS)
def test_the_length_correlation_is_that_of_all_pairs(packs: Packs) -> None:
    found = composition(*columns(packs))["length_correlation"]
    pairs = np.array([(a, b) for pack in packs for (a, _), (b, _) in permutations(pack, 2)], float)
    if len(pairs) == 0 or (pairs[:, 0] == pairs[0, 0]).all():
        assert found is None
    else:
        assert found == pytest.approx(np.corrcoef(pairs.T)[0, 1], abs=1e-9)


@given(PACKS)
def test_samples_per_pack_are_nearest_rank_quantiles(packs: Packs) -> None:
    sizes = sorted(len(pack) for pack in packs)
    rank = {"p50": -(-len(sizes) * 50 // 100), "p95": -(-len(sizes) * 95 // 100)}
    assert composition(*columns(packs))["samples_per_pack"] == {
        "min": sizes[0],
        "p50": sizes[rank["p50"] - 1],
        "p95": sizes[rank["p95"] - 1],
        "max": sizes[-1],
        "mean": sum(sizes) / len(sizes),
    }


@given(PACKS, st.integers(0, 3))
def test_source_distances_are_those_of_the_shares(packs: Packs, seed: int) -> None:
    found = composition(*columns(packs), seed=seed)["source_distance"]
    assert isinstance(found, dict)
    assert found["mean"] == pytest.approx(distance(packs, packs), abs=2**-10)
    # Packs in the order of their mixed numbers take the shuffled samples in turn; all fit the pool.
    key = derive_key(seed, "composition")
    by = np.argsort(KeyedPermutation.keyed(63, key).forward(np.arange(len(packs))))
    samples = [sample for number in by for sample in packs[number]]
    order = permutation(len(samples), derive_key(key, "shuffle"))
    drawn = iter([samples[at] for at in order])
    shuffled = [[next(drawn) for _ in packs[number]] for number in by]
    assert found["random"] == pytest.approx(distance(shuffled, packs), abs=1e-8)


@given(PACKS, st.data())
def test_packs_may_come_in_any_runs(packs: Packs, data: st.DataObject) -> None:
    first_row, length, source = columns(packs)
    cuts = data.draw(st.lists(st.integers(0, len(packs)), max_size=4).map(sorted))
    limit = module._POOL_ROWS
    try:
        module._POOL_ROWS = data.draw(st.sampled_from([5, 20, limit]))
        streamed = Composition()
        for start, end in zip([0, *cuts], [*cuts, len(packs)], strict=True):
            rows = slice(first_row[start], first_row[end])
            streamed.add(first_row[start : end + 1], length[rows], source[rows])
        assert streamed.result() == composition(first_row, length, source)
    finally:
        module._POOL_ROWS = limit


def test_packs_of_one_source_are_as_far_from_the_whole_as_can_be() -> None:
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(4), 4000)
    length = rng.integers(10, 1000, len(source))
    first_row = np.arange(0, len(source) + 1, 8)
    apart = composition(first_row, length, source)["source_distance"]
    whole = np.bincount(source, length) / length.sum()
    assert isinstance(apart, dict)
    assert apart["mean"] == pytest.approx((whole * (1 - whole)).sum(), abs=2e-3)
    assert apart["random"] < 0.45 * apart["mean"]
    order = rng.permutation(len(source))
    mixed = composition(first_row, length[order], source[order])["source_distance"]
    assert isinstance(mixed, dict)
    assert mixed["mean"] == pytest.approx(mixed["random"], rel=0.05)


def test_a_pool_of_some_packs_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    length, source = rng.integers(10, 1000, 40_000), rng.integers(0, 4, 40_000)
    first_row = np.arange(0, 40_001, 8)
    everything = composition(first_row, length, source)["source_distance"]
    monkeypatch.setattr(module, "_POOL_ROWS", 8000)
    some = composition(first_row, length, source)["source_distance"]
    assert isinstance(everything, dict)
    assert isinstance(some, dict)
    assert some["mean"] == everything["mean"]
    assert some["random"] != everything["random"]
    assert some["random"] == pytest.approx(everything["random"], rel=0.05)


def test_the_pool_does_not_depend_on_how_packs_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    first_row = np.concatenate([[0], np.cumsum(rng.integers(1, 9, 3000))])
    length, source = (rng.integers(*span, first_row[-1]) for span in ((10, 1000), (0, 4)))
    monkeypatch.setattr(module, "_POOL_ROWS", 300)
    expected = composition(first_row, length, source)
    for run in (1, 7, 250):
        streamed = Composition()
        for start in range(0, 3000, run):
            bounds = first_row[start : start + run + 1]
            rows = slice(bounds[0], bounds[-1])
            streamed.add(bounds, length[rows], source[rows])
        assert streamed.result() == expected


def test_very_long_samples_do_not_overflow() -> None:
    length = np.array([2**30, 2**30, 1, 1, 2**30 - 1, 2**30 + 1] * 1000)
    first_row = np.arange(0, len(length) + 1, 2)
    assert composition(first_row, length)["length_correlation"] == pytest.approx(1)


def test_many_sources_in_few_rows() -> None:
    first_row, source = np.array([0, 1, 2, 3]), np.array([0, 2999, 2999])
    found = composition(first_row, np.array([100, 100, 100]), source)["source_distance"]
    assert isinstance(found, dict)
    assert found["mean"] == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)


def test_without_sources_or_packs_there_is_nothing_to_say() -> None:
    assert composition(np.array([0, 2]), np.array([3, 4]))["source_distance"] is None
    nothing = np.empty(0, np.int64)
    found = composition(np.array([0]), nothing, nothing)
    assert found["length_correlation"] is None
    assert found["samples_per_pack"] == dict.fromkeys(("min", "p50", "p95", "max", "mean"))
    assert found["source_distance"] == {"mean": None, "random": None}


def test_rows_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 lengths for rows 0\.\.3"):
        composition(np.array([0, 3]), np.array([1, 2]))


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=10))
def test_exact_dot_is_exact(rows: list[tuple[int, int]]) -> None:
    a, b = np.array(rows, np.int64).reshape(-1, 2).T
    assert exact_dot(a, b) == sum(x * y for x, y in rows)
