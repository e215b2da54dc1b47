"""`make bench`: what packidx promises of its planner, as ratios measured side by side in one run.

A ratio survives a slow or noisy machine, a number of seconds does not; where it matters each pair
is timed in turns and the best of each side counts. A line whose promise is not kept ends in MISSED.
The exit status says nothing of promises: it is 0 unless something broke.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench_large import bench_large
from bench_plan import (
    REPEATS,
    bench_command,
    bench_distributions,
    bench_help,
    bench_memory,
    bench_windows,
)
from bench_schedule import bench_caps, bench_schedule, write_mix
from bench_tools import MILLION

PARTS = ("start", "distributions", "speed", "memory", "windows", "caps", "schedule", "large")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="a hundred million lengths, too")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers of samples")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else [one for one in PARTS if one != "large"]
    chosen += ["large"] if args.large and "large" not in chosen else []
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        parts = _parts(Path(folder), args.scale)
        for name in PARTS:
            if name in chosen:
                parts[name]()


def _parts(folder: Path, scale: float) -> dict[str, Callable[[], None]]:
    many = int(MILLION * scale) // 1000 * 1000  # whole shards

    def speed() -> None:
        before = bench_command(folder, many, REPEATS, at_least=2)
        bench_command(folder, 10 * many, 1, 5, ("nemo", "trl"), before)

    def of_mix(part: Callable[..., None], count: int) -> Callable[[], None]:
        def run() -> None:
            table = folder / "mix.parquet"
            part(folder, table, write_mix(table, count))

        return run

    return {
        "start": bench_help,
        "distributions": lambda: bench_distributions(folder, many),
        "speed": speed,
        "memory": lambda: bench_memory(folder, many),
        "windows": lambda: bench_windows(folder, many),
        "caps": of_mix(bench_caps, many // 2),
        "schedule": of_mix(bench_schedule, many),
        "large": lambda: bench_large(folder, 100 * many),
    }


if __name__ == "__main__":
    main()
