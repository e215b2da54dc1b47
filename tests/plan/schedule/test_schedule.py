"""Schedules: every pack once, micro-steps of equal cost in both phases, steps of the whole mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlm_mix import SOURCES, vlm_mix

from packidx.index.cost import pack_cost
from packidx.index.order import EpochOrder, order_key
from packidx.inspect.stats import ranks_stats
from packidx.packing.counts import Histogram
from packidx.packing.slots import deal_into
from packidx.packing.strategies.decreasing import best_fit_decreasing
from packidx.permutation import permutation
from packidx.plan.cost_model import DEFAULT_PRESET, parse_cost
from packidx.plan.schedule import SCHEDULES, schedule_packs

Packs = dict[str, Any]


@pytest.fixture(scope="module")
def mix() -> Packs:
    """21,000 packs of text, images and video: 40 steps of 512."""
    samples = vlm_mix(140_000)
    lengths = samples["length"]
    slots = deal_into(best_fit_decreasing(Histogram.of(lengths), 8192), lengths, 1)

    def total(values: np.ndarray) -> np.ndarray:
        sums = np.bincount(slots.pack, values[slots.item], slots.num_packs)
        return sums.astype(np.int64)

    packs = {name: total(samples[name]) for name in ("length", "vision_patches", "vision_cost")}
    packs["attention_cost"] = total(lengths * lengths)
    packs["vision"] = total(samples["image_tokens"] + samples["video_tokens"])
    parts = [total(lengths * (samples["source"] == one)) for one in range(len(SOURCES))]
    packs["sources"] = np.stack(parts, axis=1)
    return packs


def shares(packs: Packs) -> list[np.ndarray]:
    return [packs["vision"], *packs["sources"].T]


def measured(packs: Packs, kind: str, micro_steps: int, cost: str = DEFAULT_PRESET) -> list[Packs]:
    """`ranks_stats` of a schedule for global batches of 512."""
    llm, vit = pack_cost(parse_cost(cost), packs)
    options: Packs = {"global_batch": 512, "micro_steps": micro_steps, "key": 5}
    order = schedule_packs(kind, llm, vit, shares=shares(packs), **options)
    return ranks_stats(llm[order], vit[order], 512)


def of_steps(packs: Packs, order: np.ndarray, cost: str) -> tuple[float, np.ndarray]:
    """Correlation of the costs of neighbouring steps, and the deviation of every share."""
    total = np.sum(pack_cost(parse_cost(cost), packs), axis=0)
    steps = order[: len(order) // 512 * 512].reshape(-1, 512)
    off = total[steps].sum(axis=1) - total[steps].sum(axis=1).mean()
    parts = [column[steps].sum(axis=1) for column in shares(packs)]
    spread = np.std(np.array(parts) / packs["length"][steps].sum(axis=1), axis=1)
    return float((off[1:] * off[:-1]).sum() / (off * off).sum()), spread


@pytest.mark.parametrize("cost", ["qwen2.5-vl-7b", "qwen2-vl-7b", "qwen3-vl-8b"])
def test_a_mix_of_text_images_and_video(mix: Packs, cost: str) -> None:
    """What the default schedule promises, at 64 ranks and 8 micro-steps; 8 ranks profit as well."""
    small, middle, _ = measured(mix, "stratified", 8, cost)
    assert middle["ranks"] == 64 and middle["micro_steps"] == 8 and middle["steps"] == 40
    plan = middle["planned"]
    assert plan["useful"] >= plan["useful_by_phase"] >= 0.989
    llm, vit = pack_cost(parse_cost(cost), mix)
    options: Packs = {"global_batch": 512, "micro_steps": 8, "key": 5}
    order = schedule_packs("stratified", llm, vit, shares=shares(mix), **options)
    drawn = np.random.default_rng(0).permutation(len(llm))
    along, spread = of_steps(mix, order, cost)
    assert abs(along) <= 0.05 and (spread <= of_steps(mix, drawn, cost)[1]).all()
    assert middle["random"]["useful_by_phase"] < 0.92
    assert small["ranks"] == 8 and small["planned"]["useful_by_phase"] >= 0.996


@given(
    st.sampled_from(SCHEDULES),
    st.integers(0, 300),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_every_pack_once(
    kind: str, count: int, chunk: int, micro_steps: int, key: int, equal: bool
) -> None:
    rng = np.random.default_rng(count)
    llm = np.full(count, 2.5) if equal else rng.random(count) * 1e15
    vit = np.zeros(count) if equal else rng.random(count) * 1e14
    options: Packs = {"global_batch": chunk * micro_steps, "micro_steps": micro_steps, "key": key}
    tokens = [rng.integers(0, 9, count)]
    order = schedule_packs(kind, llm, vit, shares=tokens, **options)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, schedule_packs(kind, llm, vit, shares=tokens, **options))


@given(st.integers(2, 7), st.integers(2, 6), st.integers(1, 5), st.integers(0, 9))
def test_a_step_has_a_micro_step_of_every_stratum(
    steps: int, micro_steps: int, chunk: int, key: int
) -> None:
    """With one cost alone the cells are its quantiles, and the strata are runs of them."""
    llm = permutation(steps * micro_steps * chunk, key).astype(np.float64) + 1
    options: Packs = {"global_batch": micro_steps * chunk, "micro_steps": micro_steps, "key": key}
    order = schedule_packs("stratified", llm, np.zeros_like(llm), **options)
    places = (llm[order] - 1).astype(int).reshape(steps, micro_steps, chunk)
    cells = places // chunk
    assert (cells == cells[:, :, :1]).all()  # each micro-step is one run of the sorted costs
    assert (np.diff(places, axis=2) > 0).all()  # and sorted
    strata = np.sort(cells[:, :, 0] // steps, axis=1)
    assert (strata == np.arange(micro_steps)).all()


def test_what_fills_no_step_is_a_random_choice_at_the_end() -> None:
    llm = np.arange(1000.0) + 1
    ends = []
    for key in range(30):
        order = schedule_packs("stratified", llm, llm * 0, global_batch=64, micro_steps=8, key=key)
        ends.append(order[960:])
        assert (np.diff(llm[order[960:]]) > 0).all()
    counts = np.bincount(np.concatenate(ends), minlength=1000)
    assert counts.max() <= 7 and len(set(np.concatenate(ends).tolist())) > 600
    assert 450 < np.concatenate(ends).mean() < 550


def test_the_order_never_changes() -> None:
    """Snapshots are named by their options: the same must give the same order everywhere."""
    llm = (permutation(200, 1) * 37 % 101 + 5) * 1e12
    vit = (permutation(200, 2) % 40) * 1e12
    golden = {}
    for kind in SCHEDULES:
        options: Packs = {"global_batch": 24, "micro_steps": 4, "key": 7}
        golden[kind] = schedule_packs(kind, llm, vit, **options)[:8].tolist()
    assert golden == GOLDEN


GOLDEN = {
    "random": [185, 123, 170, 99, 191, 64, 160, 194],
    "stratified": [132, 134, 104, 32, 195, 122, 60, 175],
}


def test_equal_costs_stay_equal_in_both_phases_of_every_epoch() -> None:
    """What the schedule saves, every epoch saves: ranks wait as little as in the plan's order."""
    rng = np.random.default_rng(0)
    llm, vit = rng.random(6400) * 9 + 100, rng.random(6400) * 40
    order = schedule_packs("stratified", llm, vit, global_batch=64, micro_steps=8, key=3)
    llm, vit = llm[order], vit[order]

    def useful(packs: np.ndarray) -> float:
        micro = packs.reshape(-1, 8)
        worst = llm[micro].max(axis=1) + vit[micro].max(axis=1)
        return float((llm + vit)[micro].sum() / 8 / worst.sum())

    def packs_of(epoch: int, chunk: int) -> np.ndarray:
        key = order_key("0123abcd", 0, epoch)
        return EpochOrder([(0, 6400)], 64, chunk, key).packs(np.arange(6400))

    planned = useful(np.arange(6400))
    assert planned > 0.97 > useful(packs_of(0, 1)) + 0.05
    for epoch in range(3):
        assert useful(packs_of(epoch, 8)) == pytest.approx(planned)
