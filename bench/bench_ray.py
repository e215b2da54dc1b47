"""What many parts cost the driver of `--engine ray`: ``python bench/bench_ray.py [PARTS]``.

A part has one record: its time is that of a task, of a Parquet file and of syncing that to disk.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from packidx import estimate_lengths
from packidx.estimate import tasks
from packidx.records import shards
from packidx.records.containers import lines

TASK_BYTES = 200  # a record, nearly; 8 MiB otherwise


def resident(which: str) -> float:
    """MB of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not say how much memory this process has")


def main(parts: int) -> None:
    shards.TASK_BYTES = tasks.TASK_BYTES = lines.SCAN_BLOCK = TASK_BYTES
    line = json.dumps({"messages": [{"role": "user", "content": "some words " * 30}]}) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.jsonl"
        data.write_text(line * parts)
        before, begun = resident("VmRSS"), time.monotonic()
        found = estimate_lengths(str(data), Path(folder) / "lengths", engine="ray")
        seconds = time.monotonic() - begun
    print(
        f"{found.num_parts:,} parts in {seconds:.0f} s; the driver had {before:.0f} MB before and "
        f"{resident('VmHWM'):.0f} MB at most"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
