"""Rules of streams: how full their packs are, and what they cost, beside two other packers'.

    python bench/bench_streams.py

Five log-normal mixes of 60,000 samples, at 8k and 16k, in one lane. InternVL's rule keeps 100 open
packs and 48 images; LMMS Engine's is `next-fit`.
"""

from __future__ import annotations

import time

import numpy as np

from bench_tools import heading
from packidx.format.stream import StreamRule
from packidx.pack.streams import Deal, Lane

RULES = ("best-fit:16", "balanced:16", "window:256", "internvl:100", "next-fit")
MIXES = ((6.0, 1.0), (6.5, 0.8), (7.0, 1.0), (5.5, 1.2), (7.5, 0.7))
SAMPLES = 60_000


def measured(rule: str, capacity: int, mix: tuple[float, float]) -> tuple[float, float, float]:
    """Fill, µs a sample and ms a pack of one rule."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(*mix, SAMPLES), 16, capacity).astype(int).tolist()
    images = draw.integers(0, 4, SAMPLES).tolist()
    limits = (capacity, 48) if rule.startswith("internvl") else (capacity,)
    sizes = [pair[: len(limits)] for pair in zip(lengths, images, strict=True)]
    deal = Deal(np.ones(SAMPLES, np.int64), 1, seed=0)
    lane = Lane(
        StreamRule.parse(rule), limits, deal, 0, lambda row, copy: (sizes[row], 700 * images[row])
    )
    begin = time.process_time()
    packs = list(iter(lane.next_pack, None))
    seconds = time.process_time() - begin
    fill = sum(lengths) / len(packs) / capacity
    return fill, 1e6 * seconds / SAMPLES, 1e3 * seconds / len(packs)


def main() -> None:
    for capacity in (8192, 16384):
        heading(f"streams at {capacity:,} tokens: fill, us a sample, ms a pack")
        for mix in MIXES:
            for rule in RULES:
                fill, sample, pack = measured(rule, capacity, mix)
                named = f"exp N({mix[0]}, {mix[1]}), {rule}"
                print(f"  {named:34} {100 * fill:6.2f} % {sample:8.1f} {pack:8.2f}")


if __name__ == "__main__":
    main()
