"""A hundred million lengths: the memory of the command, and its time against copying the result.

Nobody can plan without reading the lengths and writing the table. So the time that the command
takes is compared with just that: reading the lengths, and writing the very samples table that
it made, from arrays that lie ready in memory, with the same writer, row groups and files. Both are
done twice, in turns, and the better time of each counts: a shared machine's speed drifts.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench_tools import CAPACITY, Int64s, heading, line, plan, ratio, write_lengths
from packidx.format.parquet import open_writer
from packidx.index import open_index
from packidx.index.window_files import ROW_GROUP
from packidx.io.files import fsync_path
from packidx.packing.counts import Histogram
from packidx.packing.strategies.decreasing import best_fit_decreasing

ROUNDS = 2


def bench_large(folder: Path, count: int) -> None:
    heading(f"{count:,} log-normal lengths: packidx plan, in windows")
    table, index = folder / "lengths.parquet", folder / "index"
    counts = write_lengths(table, count)
    try:
        taken, alone = [], []
        for _ in range(ROUNDS):
            shutil.rmtree(index, ignore_errors=True)
            taken.append(plan(table, index))
            files = [Path(file.path) for file in open_index(index).files("samples")]
            alone.append((_reading(table), _writing(files, folder / "copy.parquet")))
        best = min(taken, key=lambda one: one.cpu)
        line("packidx plan", f"{best.wall:.1f} s, {best.cpu:.1f} CPU-s")
        ratio("peak memory / 4 GB", max(one.peak for one in taken) / 1000, 4, "GB", at_most=1)
        _show_result(index, counts)
        reading, writing = min(alone, key=sum)
        line("    reading / writing arrays that lie ready", f"{reading:.1f} / {writing:.1f} CPU-s")
        label = "packidx plan / reading and writing alone"
        ratio(label, best.cpu, reading + writing, "CPU-s", at_most=2)
    finally:
        table.unlink()
        shutil.rmtree(index, ignore_errors=True)


def _show_result(index: Path, counts: Int64s) -> None:
    manifest = open_index(index).manifest
    result = manifest["result"]
    packs, bound = result["num_packs"], result["lower_bound"]
    size = sum(one.stat().st_size for one in index.rglob("*") if one.is_file())
    found = f"{packs:,} in {len(manifest['windows'])} windows, {size / 1e9:.2f} GB on disk"
    line("packs", f"{found}, gap {100 * (packs / bound - 1):.4f} % ({result['bound']})")
    present = np.flatnonzero(counts)[::-1]
    histogram = Histogram(present.astype(np.int64), counts[present])
    at_once = best_fit_decreasing(histogram, CAPACITY).total_packs
    tokens = int(present @ counts[present])
    if result["num_tokens"] != tokens:
        raise RuntimeError(f"{index} holds {result['num_tokens']:,} of {tokens:,} tokens")
    fills = [100 * tokens / (one * CAPACITY) for one in (packs, at_once)]
    loss = fills[1] - fills[0]
    found = f"{fills[0]:.4f} % / {fills[1]:.4f} %, loss {loss:.4f} %"
    line("    fill, windows / one plan of all", found, "<= 0.1 %", loss <= 0.1)


def _reading(table: Path) -> float:
    """CPU seconds of reading the lengths."""
    begin = time.process_time()
    lengths = pq.read_table(table, columns=["length"])
    taken = time.process_time() - begin
    del lengths
    return taken


def _writing(files: list[Path], copy: Path) -> float:
    """CPU seconds of writing tables, one file after another, that were read before the clock."""
    taken = 0.0
    for path in files:
        rows = pq.read_table(path).combine_chunks()
        begin = time.process_time()
        with open_writer(str(copy), rows.schema) as writer:
            writer.write_table(rows, row_group_size=ROW_GROUP["samples"])
        fsync_path(copy)
        taken += time.process_time() - begin
        if copy.stat().st_size != path.stat().st_size:
            raise RuntimeError(f"{path} is not what its rows make again")
        copy.unlink()
        del rows
        pa.default_memory_pool().release_unused()
    return taken
