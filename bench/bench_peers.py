"""The packers that packidx is compared with, as bare loops over a list of lengths in memory.

What is theirs is cut out of the installed wheel's source: importing their modules would load torch,
transformers and datasets. ``python bench_peers.py NAME COUNT`` draws log-normal lengths, runs one
loop and prints seconds and packs as JSON; so each has a process of its own, without another's
garbage.
"""

from __future__ import annotations

import ast
import gc
import heapq
import json
import logging
import subprocess
import sys
import time
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from typing import Any

from bench_tools import CAPACITY, LOG_NORMAL, lengths_of

WINDOW = 1000

Packer = Callable[[list[int], int], int]
"""Lengths and capacity in, number of packs out."""


class MissingPeerError(Exception):
    """A peer's wheel is not installed, or has no longer what is compared with."""


def cut_out(package: str, path: str, name: str, space: dict[str, Any]) -> Any:
    """The function or class `name` of a file of an installed wheel, run in `space`.

    Raises:
        MissingPeerError: there is no such wheel, file or name.
    """
    try:
        found = [one for one in files(package) or [] if str(one) == path]
    except PackageNotFoundError:
        found = []
    if not found:
        raise MissingPeerError(f"no {path}: pip install --no-deps {package}")
    tree = ast.parse(found[0].read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    if not tree.body:
        raise MissingPeerError(f"{package}: {path} has no {name}")
    exec(compile(tree, path, "exec"), space)
    return space[name]


def nemo() -> Packer:
    """NeMo Automodel's `greedy_knapsack`, as it is (it is worst-fit-decreasing)."""
    path = "nemo_automodel/components/datasets/llm/neat_packing.py"
    space = {"heapq": heapq, "time": time, "logger": logging.getLogger(__name__)}
    greedy_knapsack = cut_out("nemo-automodel", path, "greedy_knapsack", space)
    return lambda lengths, capacity: len(greedy_knapsack(lengths, capacity))


def trl() -> Packer:
    """TRL's packing ``bfd``: its segment tree, in the loop that `_pack_bfd` is without Arrow."""
    tree_of = cut_out("trl", "trl/data_utils.py", "_SegmentTree", {})

    def pack(lengths: list[int], capacity: int) -> int:
        order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        tree = tree_of(capacity)
        tree.add(capacity)
        by_space: defaultdict[int, deque[list[int]]] = defaultdict(deque)
        packs: list[list[int]] = []
        for item in order:
            length = lengths[item]
            space = tree.search(length)
            if space < capacity:
                one = by_space[space].popleft()
                if not by_space[space]:
                    tree.remove(space)
            else:
                one = []
                packs.append(one)
            one.append(item)
            space -= length
            by_space[space].append(one)
            if space > 0:
                tree.add(space)
        return len(packs)

    return pack


def binpacking() -> Packer:
    """`binpacking.to_constant_volume` in windows of 1,000, as ms-swift packs."""
    try:
        from binpacking import to_constant_volume
    except ImportError as error:
        raise MissingPeerError(f"{error}: pip install --no-deps binpacking") from None

    def pack(lengths: list[int], capacity: int) -> int:
        starts = range(0, len(lengths), WINDOW)
        windows = (list(enumerate(lengths[at : at + WINDOW])) for at in starts)
        return sum(len(to_constant_volume(one, capacity, weight_pos=1)) for one in windows)

    return pack


def best_fit() -> Packer:
    """Item-level best-fit-decreasing: each sample, longest first, into the fullest pack it fits.

    The rooms that packs have stand in a sorted list, each once, with the number of packs: two packs
    of equal room are the same to the rule.
    """

    def pack(lengths: list[int], capacity: int) -> int:
        packs = 0
        rooms: list[int] = []
        have = [0] * (capacity + 1)
        for length in sorted(lengths, reverse=True):
            at = bisect_left(rooms, length)
            if at == len(rooms):
                packs += 1
                room = capacity
            else:
                room = rooms[at]
                have[room] -= 1
                if not have[room]:
                    del rooms[at]
            room -= length
            if not have[room]:
                insort(rooms, room)
            have[room] += 1
        return packs

    return pack


PEERS: dict[str, Callable[[], Packer]] = {
    "nemo": nemo,
    "trl": trl,
    "binpacking": binpacking,
    "best-fit": best_fit,
}


def timed(name: str, count: int) -> tuple[float, int]:
    """Seconds of one peer's loop over `count` log-normal lengths, and its packs.

    Raises:
        MissingPeerError: its wheel is not installed.
    """
    done = subprocess.run(
        [sys.executable, __file__, name, str(count)], capture_output=True, text=True
    )
    if done.returncode == 3:
        raise MissingPeerError(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    found = json.loads(done.stdout)
    return found["seconds"], found["packs"]


def main(name: str, count: int) -> int:
    lengths = lengths_of(LOG_NORMAL, count).tolist()
    try:
        pack = PEERS[name]()
    except MissingPeerError as error:
        print(error, file=sys.stderr)
        return 3
    gc.collect()
    begin = time.perf_counter()
    packs = pack(lengths, CAPACITY)
    print(json.dumps({"seconds": time.perf_counter() - begin, "packs": packs}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
