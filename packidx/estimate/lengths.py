"""`estimate_lengths`: count every sample of some sources into a lengths table."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import packidx
from packidx import files, schema
from packidx.errors import OptionError, SourceError
from packidx.estimate import output as place
from packidx.estimate import work
from packidx.estimate.progress import Progress, silent
from packidx.estimate.rows import ShardInfo, media_root
from packidx.manifest import software
from packidx.processor.counter import Counter
from packidx.processor.folder import load_processor
from packidx.records.media import forget_sizes
from packidx.records.sources import Shard, ShardScan, expand_sources, scan, short_names

_MEDIA_REASONS = frozenset(
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
)


@dataclass(frozen=True)
class LengthsSummary:
    """What a lengths table holds."""

    path: str
    fingerprint: str
    num_samples: int
    """Rows: one per record, good or bad."""
    num_rejected: int
    num_tokens: int
    """Sum of `length`."""
    methods: dict[str, int]
    """Rows that are not rejected, by how they were counted."""
    rejected: dict[str, int]
    """Rejected rows by reason."""
    existed: bool
    """The same table was there already and was left as it is."""
    seconds: float


@dataclass(frozen=True)
class _Job:
    """All that decides what the table will be."""

    shards: list[Shard]
    scans: list[ShardScan]
    encoder: dict[str, str] | None
    options: dict[str, Any]


def estimate_lengths(
    sources: Sequence[str] | str,
    output: str | os.PathLike[str],
    *,
    processor: str | os.PathLike[str] | None = None,
    media_root: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> LengthsSummary:
    """Count the tokens of every record of `sources` into the lengths table `output`.

    Pixels are not decoded. Every record becomes one row; one that cannot be a sample has
    ``status = 'rejected'`` and a reason. The table's bytes do not depend on `workers`.

    Args:
        sources: JSONL files, globs or folders, each possibly as ``NAME=…``.
        output: the table's folder. A lengths table there is replaced, whole, unless it was made
            from the same sources with the same options and has no media to look for again.
        processor: folder or hub name of a Hugging Face processor; without one, lengths are
            taken from the records' own counts or guessed, and the rows say so.
        media_root: folder of the media; nothing outside it is read. Otherwise relative paths start
            from each shard's own folder.
        workers: processes; the number of CPUs by default.
        progress: called with how far the work is.

    Raises:
        SourceError: a source or the processor cannot be used, or a worker process died.
        OptionError: `output` or `workers` cannot be used.
    """
    begun = time.monotonic()
    progress = progress or silent
    workers = _workers(workers)
    output = os.fspath(output)
    root = _folder(media_root)
    existing = place.check_place(output)
    shards = expand_sources([sources] if isinstance(sources, str) else list(sources))
    name = None if processor is None else os.fspath(processor)
    counter = Counter(None if name is None else load_processor(name))
    fingerprint = counter.fingerprint()
    encoder = None if fingerprint is None else {"fingerprint": fingerprint, "name": name or ""}
    options = {"processor": name, "media_root": root}
    forget_sizes()
    job = _Job(shards, _scan(shards, workers, progress), encoder, options)
    if existing is not None and place.is_complete(output, existing) and _is_same(job, existing):
        return _summary(output, existing, True, begun)
    with place.replacing(output) as folder:
        parts = _run(job, folder, counter, workers, progress)
        manifest = _manifest(job, parts)
        files.write_json(os.path.join(folder, place.MANIFEST), manifest)
    return _summary(output, manifest, False, begun)


def _run(
    job: _Job, folder: str, counter: Counter, workers: int, progress: Progress
) -> list[work.Part]:
    tasks = work.make_tasks(_infos(job), job.scans)
    total = sum(task.num_records for task in tasks)
    done = 0

    def advance(records: int) -> None:
        nonlocal done
        done += records
        progress("count", done, total)

    workers = min(workers, len(tasks))
    if workers == 1:
        return [work.run_task(task, folder, counter, advance) for task in tasks]
    parts = []
    fingerprint = None if job.encoder is None else job.encoder["fingerprint"]
    for part in work.run_pool(tasks, folder, job.options["processor"], fingerprint, workers):
        parts.append(part)
        advance(part.rows)
    return sorted(parts, key=lambda part: part.number)


def _infos(job: _Job) -> list[ShardInfo]:
    names = short_names([shard.path for shard in job.shards])
    return [
        ShardInfo(
            number,
            names[number],
            shard.path,
            shard.source,
            *media_root(shard.path, job.options["media_root"]),
            sized=job.options["processor"] is not None,
        )
        for number, shard in enumerate(job.shards)
    ]


def _scan(shards: Sequence[Shard], workers: int, progress: Progress) -> list[ShardScan]:
    """All shards' scans; hashing lets go of the interpreter, so threads do."""
    total = sum(os.path.getsize(shard.path) for shard in shards)
    done = 0
    scans = []
    with ThreadPoolExecutor(min(workers, len(shards), 16)) as pool:
        for result in pool.map(lambda shard: scan(shard.path), shards):
            scans.append(result)
            done += result.nbytes
            progress("scan", done, total)
    return scans


def _inputs(job: _Job) -> dict[str, Any]:
    """What two runs must agree in to make the same table, as it stands in the manifest."""
    return {
        "shards": [
            {
                "uri": shard.uri,
                "bytes": result.nbytes,
                "rows": result.num_records,
                "fingerprint": result.sha256,
                "source": shard.source,
            }
            for shard, result in zip(job.shards, job.scans, strict=True)
        ],
        "encoder": job.encoder,
        "options": job.options,
    }


def _is_same(job: _Job, manifest: dict[str, Any]) -> bool:
    if any(manifest.get(name) != value for name, value in _inputs(job).items()):
        return False
    if manifest.get("version") != schema.FORMAT_VERSION:
        return False
    if job.encoder is None and job.options["processor"] is not None:
        return False  # a processor without tokenizer or template has no fingerprint to compare
    software = manifest.get("software")
    if not isinstance(software, dict) or software.get("packidx") != packidx.__version__:
        return False  # another version may count differently
    # Media files are not part of the fingerprint: they may have been repaired or exchanged since.
    if manifest.get("num_media") != 0:
        return False
    return _MEDIA_REASONS.isdisjoint(manifest.get("rejected", _MEDIA_REASONS))


def _manifest(job: _Job, parts: Sequence[work.Part]) -> dict[str, Any]:
    inputs = _inputs(job)
    rejected = _total(part.rejected for part in parts)
    return {
        "format": schema.LENGTHS_FORMAT,
        "version": schema.FORMAT_VERSION,
        "fingerprint": _fingerprint(job, parts),
        "num_samples": sum(part.rows for part in parts),
        "num_rejected": sum(rejected.values()),
        "encoder": inputs["encoder"],
        "options": inputs["options"],
        "sources": _sources(job, parts),
        "shards": inputs["shards"],
        "files": [
            {"path": part.path, "rows": part.rows, "bytes": part.nbytes, "sha256": part.sha256}
            for part in parts
        ],
        "methods": _total(part.methods for part in parts),
        "rejected": rejected,
        "num_media": sum(part.num_media for part in parts),
        "software": software(),
    }


def _fingerprint(job: _Job, parts: Sequence[work.Part]) -> str:
    """Digest of the table's logical content: not of where things are, nor of any library."""
    head = {
        "format": schema.LENGTHS_FORMAT,
        "version": schema.FORMAT_VERSION,
        "shards": [
            {"fingerprint": result.sha256, "source": shard.source}
            for shard, result in zip(job.shards, job.scans, strict=True)
        ],
        "encoder": None if job.encoder is None else job.encoder["fingerprint"],
        "options": {"confined": job.options["media_root"] is not None},
        "columns": schema.LENGTHS.names,
    }
    digests = [digest.encode() for part in parts for digest in part.digests]
    return files.digest(files.canonical_json(head), *digests)


def _sources(job: _Job, parts: Sequence[work.Part]) -> list[dict[str, Any]]:
    totals: dict[str, list[int]] = {shard.source: [0, 0, 0] for shard in job.shards}
    for part in parts:
        for name, sums in part.sources.items():
            totals[name] = [a + b for a, b in zip(totals[name], sums, strict=True)]
    return [
        {
            "name": name,
            "media_root": job.options["media_root"],
            "num_samples": samples,
            "num_rejected": rejected,
            "num_tokens": tokens,
        }
        for name, (samples, rejected, tokens) in totals.items()
    ]


def _summary(path: str, manifest: dict[str, Any], existed: bool, begun: float) -> LengthsSummary:
    return LengthsSummary(
        path=path,
        fingerprint=manifest["fingerprint"],
        num_samples=manifest["num_samples"],
        num_rejected=manifest["num_rejected"],
        num_tokens=sum(source["num_tokens"] for source in manifest["sources"]),
        methods=manifest["methods"],
        rejected=manifest["rejected"],
        existed=existed,
        seconds=time.monotonic() - begun,
    )


def _total(counts: Any) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _workers(workers: int | None) -> int:
    if workers is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if workers < 1:
        raise OptionError(f"workers is {workers}: give at least 1")
    return workers


def _folder(path: str | os.PathLike[str] | None) -> str | None:
    if path is None:
        return None
    if not os.path.isdir(path):
        raise SourceError(f"the media root {os.fspath(path)} is not a folder: check the path")
    return os.fspath(path)
