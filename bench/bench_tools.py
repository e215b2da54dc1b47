"""What the parts of `make bench` share: lengths, the command in a process, lines to print."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

CAPACITY = 8192
SHORTEST = 16
MILLION = 1_000_000
LOG_NORMAL = "exp N(ln 800, 1)"

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

DISTRIBUTIONS = (
    LOG_NORMAL,
    "exp N(ln 300, 0.8)",
    "U(1/2, 1) C",
    "half N(.45C, .05C), half N(.62C, .06C)",
    "U(1/4, 1/2) C",
    "U(1, C)",
    "256 {1..12} + exp N(ln 120, 0.8)",
)


def lengths_of(name: str, count: int, seed: int = 0) -> Int32s:
    """`count` lengths of one of `DISTRIBUTIONS`, clipped to [16, C], int32 [count]."""
    rng = np.random.default_rng(seed)
    match DISTRIBUTIONS.index(name):
        case 0:
            drawn = np.exp(rng.normal(np.log(800), 1, count))
        case 1:
            drawn = np.exp(rng.normal(np.log(300), 0.8, count))
        case 2:
            drawn = rng.uniform(CAPACITY / 2, CAPACITY, count)
        case 3:
            low = rng.normal(0.45 * CAPACITY, 0.05 * CAPACITY, count // 2)
            high = rng.normal(0.62 * CAPACITY, 0.06 * CAPACITY, count - count // 2)
            drawn = rng.permutation(np.concatenate([low, high]))
        case 4:
            drawn = rng.uniform(CAPACITY / 4, CAPACITY / 2, count)
        case 5:
            drawn = rng.uniform(1, CAPACITY, count)
        case _:
            images = 256 * rng.integers(1, 13, count)
            drawn = images + np.exp(rng.normal(np.log(120), 0.8, count))
    return np.clip(drawn, SHORTEST, CAPACITY).astype(np.int32)


def write_lengths(path: Path, count: int, at_once: int = 1 << 20) -> Int64s:
    """A bare table of `count` log-normal lengths, in chunks; returns how many there are of each.

    Returns:
        int64 [C + 1].
    """
    counts = np.zeros(CAPACITY + 1, np.int64)
    with pq.ParquetWriter(path, pa.schema([("length", pa.int32())])) as writer:
        for number, begin in enumerate(range(0, count, at_once)):
            lengths = lengths_of(LOG_NORMAL, min(at_once, count - begin), seed=number)
            counts += np.bincount(lengths, minlength=CAPACITY + 1)
            writer.write_table(pa.table({"length": lengths}))
    return counts


# -- the command -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """What a command took: wall and processor seconds, and at its peak so many MB."""

    wall: float
    cpu: float
    peak: float


# A process starts with the peak of the one it was forked from in `ru_maxrss`; VmHWM is its own.
_SCRIPT = """
import sys
from packidx_cli.main import main
status = main(sys.argv[1:])
try:
    peak = [one for one in open("/proc/self/status") if one.startswith("VmHWM")][0].split()[1]
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak // 1024 if sys.platform == "darwin" else peak
print(peak, file=sys.stderr)
sys.exit(status)
"""


def packidx(*args: str | Path) -> Taken:
    """Run the command in a process of its own.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, args)], capture_output=True, text=True
    )
    wall, after = time.perf_counter() - begin, os.times()
    if done.returncode:
        raise RuntimeError(f"packidx {' '.join(map(str, args))}: {done.stderr}")
    cpu = after.children_user + after.children_system - before.children_user
    return Taken(wall, cpu - before.children_system, int(done.stderr.split()[-1]) * 1024 / 1e6)


def plan(lengths: Path, index: Path, *options: str, capacity: int = CAPACITY) -> Taken:
    """The whole `packidx plan`: start, read, plan, durable snapshot."""
    return packidx("plan", lengths, "-o", index, "--capacity", str(capacity), *options)


# -- what is printed -------------------------------------------------------------------------------


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def line(label: str, found: str, promise: str = "", kept: bool = True) -> None:
    """One line; it ends in MISSED where a promise is not kept."""
    promised = f"   promised {promise}" if promise else ""
    print(f"  {label:<44} {found}{promised}{'' if kept else '   MISSED'}", flush=True)


def ratio(
    label: str,
    first: float,
    second: float,
    unit: str = "s",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    digits: int = 2,
    note: str = "",
) -> None:
    """`first / second = ratio`, and what was promised of it."""
    value = first / second if second else float("nan")
    promise, kept = "", True
    if at_least is not None:
        promise, kept = f">= {at_least:g}", value >= at_least
    if at_most is not None:
        promise, kept = f"<= {at_most:g}", value <= at_most
    unit = f" {unit}" if unit else ""
    found = f"{first:,.{digits}f}{unit} / {second:,.{digits}f}{unit} = {value:.3f}"
    line(label, found + (f"   ({note})" if note else ""), promise, kept)


def chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of up to `size` of `total`."""
    for begin in range(0, total, size):
        yield begin, min(total, begin + size)
