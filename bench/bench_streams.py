"""Streams: how full their packs are, and what they cost, beside a plan of the same lengths.

    python bench/bench_streams.py

Five log-normal mixes of 60,000 samples, at 8k and 16k, in 4 lanes.
"""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np

from bench_tools import heading
from packidx.arrays import Int64s
from packidx.packing.solve import Problem, solve_problem
from packidx.packing.streams import LaneOrder, pack_window

MIXES = ((6.0, 1.0), (6.5, 0.8), (7.0, 1.0), (5.5, 1.2), (7.5, 0.7))
SAMPLES, LANES = 60_000, 4
WINDOWS = (250, 1000, 4000)


def streamed(lengths: Int64s, capacity: int, window: int) -> tuple[int, float]:
    """Return the packs of all lanes, and the CPU seconds."""
    copies = np.ones(SAMPLES, np.int64)
    order = LaneOrder(copies, 1, Fraction(SAMPLES), LANES, window, seed=0)
    begin, packs = time.process_time(), 0
    for lane in range(LANES):
        for number in range(order.num_windows):
            problem = Problem(lengths[order.window(lane, number).row], capacity, {})
            packs += len(pack_window(problem, "auto", order.key(lane, number)))
    return packs, time.process_time() - begin


def main() -> None:
    for capacity in (8192, 16384):
        heading(f"streams at {capacity:,} tokens: fill, of the plan's, ms a pack")
        for mix in MIXES:
            draw = np.random.default_rng(0)
            lengths = np.clip(draw.lognormal(*mix, SAMPLES), 16, capacity).astype(np.int64)
            whole = solve_problem(Problem(lengths, capacity, {}), "auto", 0).slots.num_packs
            for window in WINDOWS:
                packs, seconds = streamed(lengths, capacity, window)
                fill = 100 * lengths.sum() / packs / capacity
                named = f"exp N({mix[0]}, {mix[1]}), windows of {window:,}"
                print(
                    f"  {named:36} {fill:6.2f} % {100 * whole / packs:7.2f} %"
                    f" {1e3 * seconds / packs:7.2f}"
                )


if __name__ == "__main__":
    main()
