"""What a schedule is worth: how long ranks wait.

The ranks of a micro-step wait for the slowest of them: its packs' mean cost over their largest is
the share of its time that is useful. On the sum of both phases this is the best case; where ranks
wait for each other in the vision tower and again in the language model, each phase has a slowest
rank of its own.

Beside the plan's order stand a seeded random one and the one that NeMo Automodel's
``balance_media_tokens`` makes (``greedy_knapsack_vt_balanced``): sorted by vision tokens, and read
by a sampler that keeps that order. Sums are over integers, so these numbers are the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.format.index import CostModel
from packidx.hashing import derive_key
from packidx.index.cost import COLUMNS, pack_cost
from packidx.index.order import Epochs
from packidx.index.reader import Index
from packidx.permutation import permutation

RANKS = (8, 64, 512)
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ScheduledPacks:
    """Columns of packs in the order of their schedule.

    Attributes:
        llm: float64 [n], cost in the language model (`packidx.index.cost.pack_cost`).
        vit: float64 [n], cost in the vision tower.
        vision: int64 [n], visual tokens (images and video); None where unknown.
    """

    llm: Float64s
    vit: Float64s
    vision: Int64s | None = None


def scheduled_packs(index: Index, weights: CostModel | None = None) -> ScheduledPacks:
    """Return the packs in the order of their schedule.

    Args:
        index: the packs.
        weights: of the cost model; None means the plan's.
    """
    media = ["image_tokens", "video_tokens"]
    packs = index.packs([*media, *COLUMNS])
    mine = Epochs.of(index.snapshot).scheduled()
    columns = {
        name: packs[name].fill_null(0).to_numpy().astype(np.int64)[mine]
        for name in packs.column_names
        if packs[name].null_count < packs.num_rows
    }
    known = [columns[name] for name in media if name in columns]
    vision = np.sum(known, axis=0) if known else None
    costs = pack_cost(weights or index.snapshot.options.cost_model, columns)
    return ScheduledPacks(*costs, vision)


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
        for each number of ranks: `ranks`, `global_batch`, `micro_steps`, `steps` (whole ones), and
        the orders `planned`, `random` and `by_vision_tokens` with `useful` and `useful_by_phase`:
        the share of the time in which ranks do not wait, where they wait once per micro-step, or
        once in each phase. None stands for what there are too few packs, or no columns, to say.
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
    numbers = {"ranks": ranks, "global_batch": global_batch, "steps": steps}
    useful = {
        name: None if order is None or not steps else _useful(packs, order, global_batch, ranks)
        for name, order in orders.items()
    }
    return {**numbers, "micro_steps": global_batch // ranks, **useful}


def _useful(
    packs: ScheduledPacks, order: Int64s, global_batch: int, ranks: int
) -> dict[str, float | None]:
    """Return the useful shares of the whole steps of an order of the packs."""
    largest = float((packs.llm + packs.vit).max())
    dealt = order[: len(order) // global_batch * global_batch].reshape(-1, ranks)
    llm, vit = (_fixed(cost, largest)[dealt] for cost in (packs.llm, packs.vit))
    total = llm + vit
    done = int(total.sum())
    together = int(total.max(axis=1).sum()) * ranks
    apart = (int(llm.max(axis=1).sum()) + int(vit.max(axis=1).sum())) * ranks
    return {
        "useful": round(done / together, _DIGITS) if together else None,
        "useful_by_phase": round(done / apart, _DIGITS) if apart else None,
    }


def _fixed(cost: Float64s, largest: float) -> Int64s:
    """Costs as integers up to 2^30: sums of 2^32 of them are exact, in any order."""
    return np.asarray(cost * ((1 << 30) / largest) if largest else cost, np.int64)
