"""What the planner promises of packs and of time, beside other packers in the same run."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bench_peers
from bench_peers import MissingPeerError
from bench_tools import (
    CAPACITY,
    DISTRIBUTIONS,
    LOG_NORMAL,
    MILLION,
    Int32s,
    Taken,
    chunks,
    heading,
    lengths_of,
    line,
    plan,
    ratio,
    write_lengths,
)
from packidx.digests import file_digest
from packidx.format.lengths import LengthsManifest, fingerprint_table
from packidx.format.manifest import decode_json, seal_manifest
from packidx.index import open_index
from packidx.io.files import write_json
from packidx.plan import plan_packs

REPEATS = 3
PATIENCE = 120.0  # seconds that a peer's loop may take before it runs on fewer lengths
NUM_SHARDS = 200
WINDOW_SHARDS = 20


def bench_help() -> None:
    """`packidx --help` against the import it cannot do without."""
    heading("start of the command")
    taken: dict[str, float] = {}
    for _ in range(5):
        for name, args in (
            ("packidx", ["-m", "packidx_cli", "--help"]),
            ("click", ["-c", "import click"]),
        ):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
            taken[name] = min(time.perf_counter() - begin, taken.get(name, math.inf))
    label = "packidx --help / import click"
    ratio(label, taken["packidx"], taken["click"], at_most=4, digits=3)


def bench_distributions(folder: Path, count: int) -> None:
    """Seven distributions: packs, proof and time, against best-fit-decreasing item by item.

    That is a bare loop (`bench_peers.best_fit`), which shares no code with the planner.
    """
    heading(f"{count:,} lengths, capacity {CAPACITY:,}: packs, and how far from the best possible")
    best_fit = bench_peers.best_fit()
    for number, name in enumerate(DISTRIBUTIONS):
        lengths = lengths_of(name, count)
        table, index = folder / "lengths.parquet", folder / f"index-{number}"
        pq.write_table(pa.table({"length": lengths}), table)
        theirs = best_fit(lengths.tolist(), CAPACITY)
        summary = plan_packs(table, index, capacity=CAPACITY)
        packs = checked(index, lengths)
        result = summary.manifest["result"]
        proof = f"{result['lower_bound']:,} by {result['bound']}"
        strategy = ", ".join(result["strategies"])
        line(name, f"{strategy}, {summary.seconds:.2f} s")
        ratio("    packs / best-fit-decreasing", packs, theirs, "", at_most=1, digits=0)
        gap = 100 * (packs / result["lower_bound"] - 1)
        found = f"{packs - result['lower_bound']:,} packs = {gap:.4f} % over {proof}"
        line("    certified gap", found, "<= 0.5 %", gap <= 0.5)
        if name == "U(1/4, 1/2) C":
            fewer = 100 * (1 - packs / theirs)
            line("    fewer packs than best-fit-decreasing", f"{fewer:.3f} %", ">= 6 %", fewer >= 6)
        shutil.rmtree(index)


def checked(index: Path, lengths: Int32s) -> int:
    """The packs of a snapshot; fails unless it has every sample once and keeps the capacity."""
    rows = open_index(index).samples(["pack_id", "sample_id", "length"])
    pack, item = rows["pack_id"].to_numpy(), rows["sample_id"].to_numpy()
    if not (np.bincount(item, minlength=len(lengths)) == 1).all():
        raise RuntimeError(f"{index}: a sample is not in exactly one pack")
    if not (rows["length"].to_numpy() == lengths[item]).all():
        raise RuntimeError(f"{index}: a sample has another length")
    sums = np.bincount(pack, lengths[item])
    if sums.max() > CAPACITY or not sums.all():
        raise RuntimeError(f"{index}: a pack is empty or over capacity")
    return len(sums)


_PEERS = {
    "nemo": "NeMo Automodel greedy_knapsack / packidx",
    "trl": "TRL segment tree / packidx",
    "best-fit": "item-level best fit / packidx",
    "binpacking": "binpacking in windows of 1,000 / packidx",
}
_PROMISED = ("nemo", "trl")


def bench_command(
    folder: Path,
    count: int,
    repeats: int,
    at_least: float,
    names: Sequence[str] = tuple(_PEERS),
    before: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The whole command, with its durable snapshot, against loops over a list in memory.

    Args:
        folder: for files.
        count: samples.
        repeats: turns of the command and of the peers that something is promised of.
        at_least: what is promised: their time over ours.
        names: the peers.
        before: seconds of each peer on a million: one that would try our patience runs on fewer.

    Returns:
        seconds of each peer.
    """
    heading(f"{count:,} log-normal lengths: loop over a list in memory / the whole command")
    table, index = folder / "speed.parquet", folder / "speed"
    pq.write_table(pa.table({"length": lengths_of(LOG_NORMAL, count)}), table)
    runs: list[Taken] = []
    found: dict[str, list[tuple[float, int]]] = {}
    sizes = {name: _bearable(name, count, before or {}) for name in names}
    for turn in range(repeats):
        shutil.rmtree(index, ignore_errors=True)
        runs.append(plan(table, index))
        for name in names:
            if turn and name not in _PROMISED:
                continue
            try:
                found.setdefault(name, []).append(bench_peers.timed(name, sizes[name]))
            except MissingPeerError as error:
                line(_PEERS[name], f"not compared: {error}", kept=name not in _PROMISED)
    ours, packs = min(runs, key=lambda one: one.wall), open_index(index).num_packs
    line("packidx plan", f"{ours.wall:.2f} s, {ours.cpu:.2f} CPU-s, {packs:,} packs")
    seconds = {name: min(one for one, _ in times) for name, times in found.items()}
    for name, taken in seconds.items():
        run, promised = sizes[name], at_least if name in _PROMISED else None
        scaled = taken * _work(count) / _work(run)
        note = "" if run == count else f"run on {run:,}: {taken:.1f} s, scaled by n log n"
        ratio(_PEERS[name], scaled, ours.wall, at_least=promised, note=note)
        if run == count:
            theirs = found[name][0][1]
            ratio("    packs, packidx / theirs", packs, theirs, "", at_most=1, digits=0)
    shutil.rmtree(index)
    table.unlink()
    return seconds


def _bearable(name: str, count: int, before: Mapping[str, float]) -> int:
    """Lengths that a peer runs on: all, or a fifth where all would take too long."""
    expected = before.get(name, 0) * _work(count) / _work(MILLION)
    return count if expected < PATIENCE else count // 5


def _work(count: int) -> float:
    """What a loop over sorted lengths grows with."""
    return count * math.log(count)


def bench_memory(folder: Path, count: int) -> None:
    """Peak memory of the command."""
    heading(f"{count:,} log-normal lengths: memory")
    table = folder / "memory.parquet"
    write_lengths(table, count)
    peak = plan(table, folder / "memory").peak
    ratio("peak memory of packidx plan / 600", peak, 600, "MB", at_most=1, digits=0)
    shutil.rmtree(folder / "memory")


# -- windows of shards -----------------------------------------------------------------------------


def bench_windows(folder: Path, count: int) -> None:
    """Windows of 20 shards against the global plan, where shards differ and where they do not."""
    heading(f"{count:,} lengths in {NUM_SHARDS} shards: windows of {WINDOW_SHARDS} / one plan")
    for name, drift in (("equal shards", 0.0), ("medians that differ, sigma 0.3", 0.3)):
        lengths = folder / "shards"
        write_shards(lengths, count, drift)
        packs, apart = [], []
        for options in (["--window", str(WINDOW_SHARDS)], []):
            plan(lengths, folder / "index", *options)
            rows = open_index(folder / "index").samples(["pack_id", "shard"])
            pairs = rows["pack_id"].to_numpy() * NUM_SHARDS + rows["shard"].to_numpy()
            packs.append(int(rows["pack_id"].to_numpy().max()) + 1)
            apart.append(len(np.unique(pairs)) / packs[-1])
        fills = [100 * total_of(lengths) / (one * CAPACITY) for one in packs]
        loss = fills[1] - fills[0]
        found = f"{fills[0]:.4f} % / {fills[1]:.4f} % fill, loss {loss:.4f} %"
        line(name, f"{packs[0]:,} / {packs[1]:,} packs, {found}", "<= 0.1 %", loss <= 0.1)
        ratio("    shards per pack, windows / one plan", apart[0], apart[1], "shards")
        shutil.rmtree(lengths)
        shutil.rmtree(folder / "index")


def total_of(lengths: Path) -> int:
    return int(pq.read_table(lengths / "part-00000.parquet")["length"].to_numpy().sum())


def write_shards(folder: Path, count: int, drift: float) -> None:
    """A lengths table with a manifest of shards that need not exist to be planned.

    Args:
        folder: to make.
        count: samples, a multiple of the shards.
        drift: standard deviation of the shards' log medians.
    """
    rows = count // NUM_SHARDS
    rng = np.random.default_rng(1)
    medians = np.repeat(np.log(800) + drift * rng.normal(size=NUM_SHARDS), rows)
    lengths = np.clip(np.exp(medians + rng.normal(size=count)), 16, CAPACITY).astype(np.int32)
    columns = {
        "sample_id": np.arange(count),
        "shard": np.repeat(np.arange(NUM_SHARDS, dtype=np.int32), rows),
        "row": np.tile(np.arange(rows), NUM_SHARDS),
        "length": lengths,
    }
    folder.mkdir()
    path = folder / "part-00000.parquet"
    with pq.ParquetWriter(path, pa.table(columns).schema) as writer:
        for begin, end in chunks(count, 1 << 17):
            writer.write_table(pa.table({name: one[begin:end] for name, one in columns.items()}))
    source: dict[str, object] = {
        "name": "bench",
        "media_root": None,
        "num_samples": count,
        "num_rejected": 0,
    }
    shards = [
        {
            "uri": f"shard-{number:05d}.tar",
            "bytes": 0,
            "rows": rows,
            "fingerprint": f"{number:064x}",
            "source": "bench",
        }
        for number in range(NUM_SHARDS)
    ]
    part = {"path": path.name, "rows": count, "bytes": path.stat().st_size}
    manifest: dict[str, Any] = {
        "num_samples": count,
        "num_rejected": 0,
        "encoder": None,
        "options": {},
        "methods": {"exact": count},
        "rejected": {},
        "num_media": 0,
        "sources": [source | {"num_tokens": int(lengths.sum())}],
        "shards": shards,
        "files": [part | {"sha256": file_digest(path)}],
    }
    manifest["fingerprint"] = fingerprint_table(manifest)
    signed = seal_manifest(decode_json(LengthsManifest, manifest))
    write_json(folder / "manifest.json", signed.to_json())
