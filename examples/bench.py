"""`make bench`: what packidx promises about speed, as ratios measured side by side in one run.

A ratio survives a slow or noisy machine, a number of seconds does not; each pair is timed in turns
and the best of each side counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_SAMPLES = 1_000_000
CAPACITY = 8192
REPEATS = 5


def log_normal(count: int) -> np.ndarray:
    """Lengths of a usual mix: log-normal, median 800, sigma 1, within [16, capacity]."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(800), 1, count))
    return np.clip(lengths, 16, CAPACITY).astype(np.int32)


def best_of(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """The shortest wall times of both, in seconds, run alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for run, taken in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
    return min(times[0]), min(times[1])


def python(*args: str) -> None:
    subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)


def bench_help() -> None:
    """`packidx --help` against the import it cannot do without; promised: at most 4 times."""
    ours, click = best_of(
        lambda: python("-m", "packidx_cli", "--help"), lambda: python("-c", "import click")
    )
    print(
        f"packidx --help / import click        {ours:6.3f} s / {click:.3f} s = {ours / click:5.2f}"
    )


def bench_plan(folder: Path) -> None:
    """The whole command against one item-by-item best fit decreasing in the same interpreter."""
    from bisect import bisect_left, insort

    lengths = log_normal(NUM_SAMPLES)
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    packs = 0

    def command() -> None:
        import shutil

        shutil.rmtree(folder / "index", ignore_errors=True)
        source, index = str(folder / "lengths.parquet"), str(folder / "index")
        python("-m", "packidx_cli", "plan", source, "-o", index, "--capacity", str(CAPACITY))

    def item_by_item() -> None:
        nonlocal packs
        rooms: list[int] = []
        packs = 0
        for length in np.sort(lengths)[::-1].tolist():
            at = bisect_left(rooms, length)
            if at == len(rooms):
                packs += 1
                room = CAPACITY
            else:
                room = rooms.pop(at)
            if room - length >= 16:
                insort(rooms, room - length)

    ours, loop = best_of(command, item_by_item)
    found = pq.read_metadata(next((folder / "index").glob("snapshots/*/packs-*.parquet"))).num_rows
    print(f"item-level loop / packidx plan (1M)  {loop:6.2f} s / {ours:.2f} s = {loop / ours:5.2f}")
    print(f"packs, packidx plan / item-level     {found} / {packs} = {found / packs:.6f}")


def bench_memory(folder: Path) -> None:
    """Peak memory of the command above; promised: at most 600 MB."""
    script = (
        "import resource, sys; from packidx_cli.main import main; main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    args = ["plan", str(folder / "lengths.parquet"), "-o", str(folder / "index"), "--capacity"]
    done = subprocess.run(
        [sys.executable, "-c", script, *args, "8000"], check=True, capture_output=True, text=True
    )
    peak = int(done.stdout.splitlines()[-1]) / 1024
    print(f"peak memory of that command / 600    {peak:6.0f} MB / 600 MB = {peak / 600:5.2f}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench_help()
        bench_plan(Path(folder))
        bench_memory(Path(folder))


if __name__ == "__main__":
    main()
