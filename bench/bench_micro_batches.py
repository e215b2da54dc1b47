"""Micro-batches of one step: `balance_micro_batches` beside verl's `rearrange_micro_batches`.

    python bench/bench_micro_batches.py [--largest N]

verl 0.9.1 deals samples to ever more micro-batches by Karmarkar and Karp's differencing of the cost
24,576 l + l^2, until none has more tokens than fit. Its functions are cut out of the installed
wheel and run as they are, but for the copying of tensors at the end. `balance_micro_batches` makes
the fewest it can, and then as many as verl, for the balance is another question with more of them.
Exits with 1 where it makes more than verl, balances as many worse, or is less than 100 times as
fast at 2,048.
"""

from __future__ import annotations

import argparse
import copy
import heapq
import sys
import time
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bench_peers import MissingPeerError, cut_out
from bench_tools import heading
from packidx import balance_micro_batches

CAPACITY = 16_384
COUNTS = (64, 256, 1024, 2048)
MIXES = {"log-normal": (7.5, 0.8), "long answers": (7.8, 0.5), "heavy tail": (6.5, 1.5)}
FASTER = 100
"""Times as fast at the largest count."""
_THEIRS = (
    *("calculate_workload", "karmarkar_karp", "get_seqlen_balanced_partitions"),
    *("ceildiv", "roundup_divisible", "rearrange_micro_batches"),
)


def theirs() -> Any:
    """verl's function over a list of lengths: its micro-batches, each the numbers of its samples.

    Raises:
        MissingPeerError: verl's wheel is not installed.
    """
    space: dict[str, Any] = {"torch": torch, "copy": copy, "heapq": heapq, "chain": chain}
    space["dist"] = SimpleNamespace(is_initialized=lambda: False)
    space["tu"] = SimpleNamespace(index_select_tensor_dict=lambda batch, chosen: None)
    for name in _THEIRS:
        cut_out("verl", "verl/utils/seqlen_balancing.py", name, space)

    def rearrange(lengths: list[int]) -> list[list[int]]:
        offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
        ids = torch.nested.nested_tensor_from_jagged(torch.zeros(int(offsets[-1])), offsets)
        return list(space["rearrange_micro_batches"]({"input_ids": ids}, CAPACITY)[1])

    return rearrange


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--largest", type=int, default=COUNTS[-1], help="most samples of a step")
    largest = parser.parse_args().largest
    heading(f"micro-batches of at most {CAPACITY:,} tokens: number, dearest / mean, ms")
    try:
        rearrange = theirs()
    except MissingPeerError as error:
        print(f"  not compared: {error}")
        return
    worse = []
    for mix, (mean, spread) in MIXES.items():
        for count in (number for number in COUNTS if number <= largest):
            draw = np.random.default_rng(count)
            lengths = np.clip(draw.lognormal(mean, spread, count), 16, CAPACITY).astype(np.int64)
            cost = 24_576.0 * lengths + lengths**2
            begin = time.process_time()
            packs = rearrange(lengths.tolist())
            middle = time.process_time()
            ours = balance_micro_batches(lengths, CAPACITY, cost=cost)
            seconds, own = middle - begin, time.process_time() - middle
            as_many = balance_micro_batches(lengths, CAPACITY, cost=cost, at_least=len(packs))
            costs = np.array([cost[pack].sum() for pack in packs])
            balance, number = float(costs.max() / costs.mean()), ours.costs.size
            print(
                f"  {mix:13} n = {count:5}: verl {len(packs):4} {balance:.4f} {1e3 * seconds:9.1f}"
                f"   balance_micro_batches {number:4} {ours.balance:.4f} {1e3 * own:7.1f}"
                f"   as many {as_many.balance:.4f}   {seconds / own:7.0f} times as fast",
                flush=True,
            )
            number = max(number, as_many.costs.size)
            if number > len(packs) or as_many.balance > balance * (1 + 1e-9):
                worse.append(f"{mix} of {count}")
            if count == COUNTS[-1] and seconds < FASTER * own:
                worse.append(f"{mix} of {count}: the time")
    if worse:
        sys.exit(f"worse than verl: {', '.join(worse)}")


if __name__ == "__main__":
    main()
