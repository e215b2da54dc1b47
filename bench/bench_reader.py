"""Looking packs up in a large index: opening it, time per pack, and what a process keeps of it.

Every figure is of a fresh process, as a DataLoader's worker is one; of a few runs the best counts,
for others use the machine, too. By default the index has ten million samples, with --large a
hundred million (a minute of planning, 1 GB of disk).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench_tools import MILLION, heading, line, plan, write_lengths

RUNS = 3
PACKS = {"steps": 10_000, "random": 2_500}
WORLD_SIZE, GLOBAL_BATCH = 8, 512

_CHILD = "import sys, bench_reader; bench_reader.measure(*sys.argv[1:])"


def main(index_path: Path | None = None, count: int = 10 * MILLION) -> None:
    """Print the figures of an index, or of one that is planned from `count` bare lengths."""
    if index_path is not None:
        bench_reader(index_path)
        return
    with tempfile.TemporaryDirectory() as folder:
        table, index = Path(folder) / "lengths.parquet", Path(folder) / "index"
        write_lengths(table, count)
        plan(table, index)
        bench_reader(index)


def bench_reader(index: Path) -> None:
    """Print what opening `index` and looking packs up takes, beside what is promised."""
    steps, random = (_runs(index, order) for order in ("steps", "random"))
    samples = steps[0]["num_samples"]
    heading(f"{samples:,} samples in {steps[0]['num_packs']:,} packs: looking packs up by number")
    opened = min(run["open"] for run in steps + random)
    line("open_index", f"{1e3 * opened:.1f} ms", "<= 200 ms", opened <= 0.2)
    p50 = _times(steps, 50)
    found = f"p50 {1e6 * p50:.0f} µs, p99 {1e3 * _times(steps, 99):.1f} ms"
    line(f"pack, sampler's order, rank 0 of {WORLD_SIZE}", found, "p50 <= 50 µs", p50 <= 50e-6)
    p99 = _times(random, 99)
    found = f"p50 {1e3 * _times(random, 50):.1f} ms, p99 {1e3 * p99:.1f} ms"
    found += f" ({1e3 * _times(random, 99, 'cpu'):.1f} ms of the processor's time)"
    line("pack, random order", found, "p99 <= 5 ms", p99 <= 5e-3)
    grown = [max(run["grown"] for run in runs) for runs in (steps, random)]
    found = f"{grown[0] / 1e6:.0f} MB / {grown[1] / 1e6:.0f} MB"
    label = f"more memory after {' / '.join(f'{one:,}' for one in PACKS.values())} packs"
    line(label, found, "<= 50 MB", max(grown) <= 50e6)


def _runs(index: Path, order: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", _CHILD, str(index.resolve()), order]
    here = Path(__file__).parent  # where the process finds this module
    found = []
    for _ in range(RUNS):
        done = subprocess.run(command, capture_output=True, text=True, cwd=here)
        if done.returncode:
            raise RuntimeError(f"looking up packs of {index}: {done.stderr}")
        found.append(json.loads(done.stdout))
    return found


def _times(runs: list[dict[str, Any]], percentile: int, clock: str = "wall") -> float:
    """Seconds: the least that a run had at a percentile of its packs."""
    return min(float(np.percentile(run[clock], percentile)) for run in runs)


# -- in the process that is measured ---------------------------------------------------------------


def measure(path: str, order: str) -> None:
    """Open the index at `path`, look packs up, and print what each took as JSON."""
    from packidx.index import open_index
    from packidx.torch import PackSampler

    begin = time.perf_counter()
    index = open_index(path)
    opened = time.perf_counter() - begin
    sampler = PackSampler(index, world_size=WORLD_SIZE, global_batch=GLOBAL_BATCH)
    packs = list(islice(sampler, PACKS[order]))
    if order == "random":
        packs = np.random.default_rng(0).integers(0, index.num_packs, PACKS[order]).tolist()
    before = resident()
    wall, cpu = [], []
    for pack in packs:
        began = time.perf_counter(), time.thread_time()
        index.pack(pack)
        wall.append(time.perf_counter() - began[0])
        cpu.append(time.thread_time() - began[1])
    found = {"open": opened, "grown": resident() - before, "wall": wall, "cpu": cpu}
    print(json.dumps(found | {"num_packs": index.num_packs, "num_samples": index.num_samples}))


def resident() -> int:
    """Bytes of memory that this process has now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # no Linux: the peak has to do
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index", nargs="?", type=Path, help="an index that is there already")
    parser.add_argument("--large", action="store_true", help="a hundred million samples")
    args = parser.parse_args()
    main(args.index, (100 if args.large else 10) * MILLION)
