"""Counting by probes against a hand-written family, and the time to a first plan of many sizes.

The family's own processor is counted both ways: as it is, and as if packidx knew no family. Both
have counted the corpus before, as what is learnt of a processor stays in the cache.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from bench_tools import heading, line, ratio

MODEL = "qwen2.5-vl"
NUM_RECORDS, NUM_SIZES = 2000, 500
RUNS = 3
ESTIMATE = """
import resource, sys
import packidx.processor.families as families
from packidx_cli.main import main
if sys.argv[1] == "probes":
    families.FAMILIES.clear()
status = main(sys.argv[2:])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used), file=sys.stderr)
sys.exit(status)
"""


def estimate(way: str, source: Path, processor: Path, output: Path) -> float:
    """CPU seconds; one process, so that it counts as it is told to."""
    args = ["estimate", str(source), "-o", str(output), "--processor", str(processor)]
    args += ["--workers", "1", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", ESTIMATE, way, *args], check=True, capture_output=True, text=True
    )
    return float(done.stderr.split()[-1])


def lengths(output: Path) -> list[int]:
    """Of all samples, in order."""
    table = pq.read_table(sorted(output.glob("part-*.parquet")), columns=["sample_id", "length"])
    found: list[int] = table.sort_by("sample_id")["length"].to_pylist()
    return found


def against_a_family(data: Path, folder: Path) -> None:
    """Promised: at most 1.3 times the family's time."""
    processor = data / "processors" / MODEL
    least = {}
    for number in range(RUNS + 1):  # the first one learns
        for way in ("family", "probes"):
            output = folder / f"{way}-{number}"
            taken = estimate(way, data / "corpus", processor, output)
            if number:
                least[way] = min(taken, least.get(way, taken))
    same = lengths(folder / "family-1") == lengths(folder / "probes-1")
    ratio("CPU time, probes / family", least["probes"], least["family"], at_most=1.3)
    line("lengths are equal", str(same), kept=same)


def first_plan(data: Path, folder: Path) -> None:
    """Promised: at most 60 seconds to a first plan."""
    rng = random.Random(0)
    sizes = [(rng.randrange(100, 1500), rng.randrange(100, 1500)) for _ in range(NUM_SIZES)]
    source = folder / "sizes"
    source.mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", size).save(source / f"{number}.png")
    with open(source / "data.jsonl", "w", encoding="utf-8") as file:
        for number in range(NUM_RECORDS):
            messages = [
                {"role": "user", "content": f"<image>What is number {number}?"},
                {"role": "assistant", "content": "An image."},
            ]
            record = {"messages": messages, "images": [f"{number % NUM_SIZES}.png"]}
            file.write(json.dumps(record) + "\n")
    begin = time.perf_counter()
    output = folder / "lengths"
    estimate("probes", source, data / "processors" / MODEL, output)
    plan = ["plan", str(output), "-o", str(folder / "index"), "--capacity", "8192", "--quiet"]
    subprocess.run([sys.executable, "-m", "packidx_cli", *plan], check=True, capture_output=True)
    taken = time.perf_counter() - begin
    label = f"first plan, {NUM_RECORDS:,} records of {NUM_SIZES} sizes"
    line(label, f"{taken:.1f} s", "<= 60 s", taken <= 60)


def main(data: Path) -> None:
    """Print both."""
    heading("Counting by probes")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PACKIDX_CACHE"] = os.path.join(folder, "cache")
        against_a_family(data, Path(folder))
        first_plan(data, Path(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
