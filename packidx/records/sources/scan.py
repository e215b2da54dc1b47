"""All shards scanned, several at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from packidx.io import storage, urls
from packidx.records.containers.base import TASK_BYTES, ShardScan
from packidx.records.containers.blocks import file_version
from packidx.records.shards import Shard, scan
from packidx.run.progress import Progress


def is_large(shards: Sequence[Shard]) -> bool:
    """Whether there is work for several processes."""
    return sum(file_version(shard.path)[0] for shard in shards) > 2 * TASK_BYTES


def scan_shards(shards: Sequence[Shard], workers: int, progress: Progress) -> list[ShardScan]:
    """All shards' scans; hashing lets go of the interpreter, and so does waiting for a store."""
    total = sum(file_version(shard.path)[0] for shard in shards)
    done = 0
    scans = []

    def scan_one(shard: Shard) -> ShardScan:
        return scan(shard.path, shard.container, shard.layout)

    threads = storage.THREADS if any(urls.is_url(shard.path) for shard in shards) else workers
    with ThreadPoolExecutor(min(threads, len(shards), storage.THREADS)) as pool:
        for result in pool.map(scan_one, shards):
            scans.append(result)
            done += result.nbytes
            progress("scan", done, total)
    return scans
