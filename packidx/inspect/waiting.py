"""What a schedule is worth: how long ranks wait, and how much the data of the steps differ.

The ranks of a micro-step wait for the slowest of them: its packs' mean cost over their largest is
the share of its time that is useful. On the sum of both phases this is the best case; where ranks
wait for each other in the vision tower and again in the language model, each phase has a slowest
rank of its own. What is gained must not be paid for with steps of one kind of data, so the spread
of the steps' shares is given as a multiple of random order's, and the autocorrelation of their
costs beside what chance alone makes of it.

Beside the plan's order stand a seeded random one and the one that NeMo Automodel's
``balance_media_tokens`` makes (``greedy_knapsack_vt_balanced``): sorted by vision tokens, and read
by a sampler that keeps that order. Sums are over integers or correctly rounded (`math.fsum`), so
these numbers are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.hashing import derive_key
from packidx.index.cost import COLUMNS, pack_cost
from packidx.index.order import Epochs
from packidx.index.reader import Index
from packidx.permutation import permutation

RANKS = (8, 64, 512)
_DIGITS = 6


def first_epoch(
    index: Index, others: Sequence[str] = ()
) -> tuple[dict[str, Int64s], Float64s, Float64s]:
    """Columns of the first epoch's packs by name, int64 [n], and their costs in LLM and ViT.

    Args:
        index: the packs, in the order of their schedule.
        others: columns beside those that the cost is made of; what is unknown is left out.
    """
    packs = index.packs([*others, *COLUMNS])
    mine = Epochs.of(index.snapshot).scheduled(0)
    columns = {
        name: packs[name].fill_null(0).to_numpy().astype(np.int64)[mine]
        for name in packs.column_names
        if packs[name].null_count < packs.num_rows
    }
    return columns, *pack_cost(index.snapshot.options.cost_model, columns)


@dataclass(frozen=True, slots=True)
class ScheduledPacks:
    """Columns of packs in the order of their schedule.

    Attributes:
        llm: float64 [n], cost in the language model (`packidx.index.cost.pack_cost`).
        vit: float64 [n], cost in the vision tower.
        length: int64 [n], tokens.
        vision: int64 [n], visual tokens (images and video); None where unknown.
        sources: int64 [n, sources], tokens of each source; None where unknown.
    """

    llm: Float64s
    vit: Float64s
    length: Int64s
    vision: Int64s | None = None
    sources: Int64s | None = None


def ranks_stats(
    packs: ScheduledPacks, global_batch: int, ranks: Sequence[int] = RANKS, seed: int = 0
) -> list[dict[str, Any]]:
    """Return how well the schedule serves each number of ranks, ready for JSON.

    Args:
        packs: in the order of the schedule.
        global_batch: packs per step that was planned for, 1 where none was. Where a number of ranks
            does not divide it, the next multiple of that number is taken instead.
        ranks: numbers of data-parallel ranks.
        seed: of the random order.

    Returns:
        for each number of ranks: `ranks`, `global_batch`, `micro_steps`, `steps` (whole ones),
        `autocorrelation_by_chance` (1/sqrt(steps)), and the orders `planned`, `random` and
        `by_vision_tokens` with:

        - `useful`, `useful_by_phase`: share of the time in which ranks do not wait, where they wait
          once per micro-step, or once in each phase;
        - `autocorrelation` of the costs of neighbouring steps;
        - `vision_spread`: standard deviation over steps of the visual tokens' share;
        - `vision_spread_vs_random`, `source_spread_vs_random`: that spread as a multiple of random
          order's, and the largest such multiple of any source.

        None stands for what there are too few steps, or no columns, to say.
    """
    drawn = permutation(len(packs.llm), derive_key(seed, "random order"))
    orders: dict[str, Int64s | None] = {
        "planned": np.arange(len(packs.llm)),
        "random": drawn,
        "by_vision_tokens": None,
    }
    if packs.vision is not None:
        # Packs with equally many stand in random order: that much of NeMo's is arbitrary.
        orders["by_vision_tokens"] = drawn[np.argsort(packs.vision[drawn], kind="stable")]
    return [
        _for_ranks(packs, orders, -(-global_batch // number) * number, number) for number in ranks
    ]


def _for_ranks(
    packs: ScheduledPacks, orders: dict[str, Int64s | None], global_batch: int, ranks: int
) -> dict[str, Any]:
    steps = len(packs.llm) // global_batch
    result: dict[str, Any] = {
        "ranks": ranks,
        "global_batch": global_batch,
        "micro_steps": global_batch // ranks,
        "steps": steps,
        "autocorrelation_by_chance": round(1 / math.sqrt(steps), _DIGITS) if steps else None,
    }
    if not steps:
        return {**result, **dict.fromkeys(orders)}
    random_spread = None
    for name in ("random", "planned", "by_vision_tokens"):
        order = orders[name]
        if order is None:
            result[name] = None
            continue
        table = order[: steps * global_batch].reshape(steps, global_batch)
        spread = _spreads(packs, table)
        random_spread = spread if random_spread is None else random_spread
        result[name] = _of_order(packs, table, ranks) | _compare(spread, random_spread)
    return result


def _of_order(packs: ScheduledPacks, table: Int64s, ranks: int) -> dict[str, Any]:
    """Useful shares and autocorrelation; `table` is int64 [steps, global_batch], pack numbers."""
    largest = float((packs.llm + packs.vit).max())
    llm, vit = (_fixed(cost, largest)[table].reshape(-1, ranks) for cost in (packs.llm, packs.vit))
    total = llm + vit
    done = int(total.sum())
    together = int(total.max(axis=1).sum()) * ranks
    apart = (int(llm.max(axis=1).sum()) + int(vit.max(axis=1).sum())) * ranks
    return {
        "useful": round(done / together, _DIGITS) if together else None,
        "useful_by_phase": round(done / apart, _DIGITS) if apart else None,
        "autocorrelation": _autocorrelation(total.reshape(len(table), -1).sum(axis=1)),
    }


def _fixed(cost: Float64s, largest: float) -> Int64s:
    """Costs as integers up to 2^30: sums of 2^32 of them are exact, in any order."""
    return np.asarray(cost * ((1 << 30) / largest) if largest else cost, np.int64)


def _autocorrelation(costs: Int64s) -> float | None:
    """Correlation of each step's cost with the next one's; None below three different steps."""
    values = [int(cost) for cost in costs]
    mean = sum(values) / len(values)
    off = [value - mean for value in values]
    power = math.fsum(here * here for here in off)
    if len(values) < 3 or not power:
        return None
    along = math.fsum(here * following for here, following in zip(off, off[1:], strict=False))
    return round(along / power, _DIGITS)


def _spreads(packs: ScheduledPacks, table: Int64s) -> dict[str, list[float] | None]:
    """Standard deviation over steps of visual tokens' share and of every source's."""
    if len(table) < 2:
        return {"vision": None, "source": None}
    tokens = packs.length[table].sum(axis=1)
    vision = None if packs.vision is None else [_deviation(packs.vision[table], tokens)]
    if packs.sources is None:
        return {"vision": vision, "source": None}
    columns = np.ascontiguousarray(packs.sources.T)
    return {"vision": vision, "source": [_deviation(column[table], tokens) for column in columns]}


def _deviation(counts: Int64s, tokens: Int64s) -> float:
    shares = (counts.sum(axis=1) / np.maximum(tokens, 1)).tolist()
    mean = math.fsum(shares) / len(shares)
    return math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / len(shares))


def _compare(
    spread: dict[str, list[float] | None], random: dict[str, list[float] | None]
) -> dict[str, float | None]:
    vision = spread["vision"]
    return {
        "vision_spread": None if vision is None else round(vision[0], _DIGITS),
        "vision_spread_vs_random": _largest_ratio(vision, random["vision"]),
        "source_spread_vs_random": _largest_ratio(spread["source"], random["source"]),
    }


def _largest_ratio(mine: list[float] | None, random: list[float] | None) -> float | None:
    """None where nothing varies in random order: there is nothing to compare with."""
    pairs = zip(mine or (), random or (), strict=True)
    ratios = [ours / chance for ours, chance in pairs if chance > 0]
    return round(max(ratios), _DIGITS) if ratios else None
