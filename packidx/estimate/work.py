"""Tasks: which ranges of which shards make a part file, and counting one, here or in a pool."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import pyarrow as pa
import pyarrow.compute as pc

from packidx import files, schema
from packidx.errors import MismatchError, SourceError
from packidx.estimate.rows import ShardInfo, shard_rows
from packidx.processor.counter import Counter
from packidx.processor.folder import load_processor
from packidx.records.sources import TASK_BYTES, Range, ShardScan

ROW_GROUP = 16384
"""Rows of a row group: pinned, because the file's bytes depend on it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One part file's work."""

    number: int
    first_id: int
    """sample_id of its first row."""
    ranges: tuple[tuple[ShardInfo, Range], ...]

    @property
    def num_records(self) -> int:
        return sum(part.num_records for _, part in self.ranges)

    @property
    def file_name(self) -> str:
        return f"part-{self.number:05d}.parquet"


@dataclass(frozen=True, slots=True)
class Part:
    """A part file that is written, and the sums over it."""

    number: int
    path: str
    rows: int
    nbytes: int
    sha256: str
    digests: tuple[str, ...]
    """`files.array_digest` of each column, in the schema's order."""
    methods: dict[str, int]
    rejected: dict[str, int]
    num_media: int
    sources: dict[str, tuple[int, int, int]]
    """Per source: samples, rejected samples, tokens."""


def make_tasks(shards: Sequence[ShardInfo], scans: Sequence[ShardScan]) -> list[Task]:
    """At least one task: ranges in order, small ones together until about `TASK_BYTES`."""
    tasks: list[Task] = []
    ranges: list[tuple[ShardInfo, Range]] = []
    nbytes, first_id = 0, 0

    def close() -> None:
        nonlocal ranges, nbytes, first_id
        tasks.append(Task(len(tasks), first_id, tuple(ranges)))
        first_id += tasks[-1].num_records
        ranges, nbytes = [], 0

    for shard, scan in zip(shards, scans, strict=True):
        for part in scan.ranges:
            if ranges and nbytes + part.end - part.start > TASK_BYTES * 3 // 2:
                close()
            ranges.append((shard, part))
            nbytes += part.end - part.start
    if ranges or not tasks:
        close()
    return tasks


def run_task(
    task: Task, folder: str, counter: Counter, progress: Callable[[int], None] | None = None
) -> Part:
    """Count one task's records and write its part file.

    Raises:
        SourceError: a shard cannot be read or is no longer what was scanned.
        OSError: the part cannot be written.
    """
    path = os.path.join(folder, task.file_name)
    with schema.open_writer(path, schema.LENGTHS) as writer:  # at once: it marks the task as begun
        table = _count(task, counter, progress)
        writer.write_table(table, row_group_size=ROW_GROUP)
    files.fsync_path(path)
    return Part(
        number=task.number,
        path=task.file_name,
        rows=table.num_rows,
        nbytes=os.path.getsize(path),
        sha256=files.file_digest(path),
        digests=tuple(files.array_digest(column) for column in table.columns),
        methods=_frequencies(table, "method"),
        rejected=_frequencies(table, "reason"),
        num_media=pc.sum(pc.list_value_length(table.column("media"))).as_py() or 0,
        sources=_source_sums(table),
    )


def run_pool(
    tasks: Sequence[Task], folder: str, processor: str | None, fingerprint: str | None, workers: int
) -> Iterator[Part]:
    """Parts as they are finished, in any order, counted by `workers` processes.

    Raises:
        SourceError: also when a worker process dies.
    """
    executor = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_start_worker,
        initargs=(processor, fingerprint),
    )
    try:
        waiting: dict[Future[Part], Task] = {
            executor.submit(_run_in_worker, task, folder): task for task in tasks
        }
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: waiting[f].number):
                try:
                    part = future.result()
                except BrokenProcessPool:
                    raise _died(waiting.values(), folder) from None
                del waiting[future]
                yield part
    finally:
        processes = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in processes:
            with contextlib.suppress(Exception):
                process.join(5)


_counter: Counter | None = None
_failure: Exception | None = None


def _start_worker(processor: str | None, fingerprint: str | None) -> None:
    global _counter, _failure
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    try:
        counter = Counter(None if processor is None else load_processor(processor))
        if counter.fingerprint() != fingerprint:
            raise MismatchError(
                f"the processor {processor} changed while it was loaded: a worker has the "
                f"fingerprint {counter.fingerprint()}, the parent {fingerprint}; start again"
            )
        _counter = counter
    except Exception as error:  # raised by the task: a failing initializer says nothing
        _failure = error


def _run_in_worker(task: Task, folder: str) -> Part:
    if _failure is not None:
        raise _failure
    if _counter is None:
        raise RuntimeError("the worker was not started by run_pool")
    return run_task(task, folder, _counter)


def _died(waiting: Iterable[Task], folder: str) -> SourceError:
    tasks = sorted(waiting, key=lambda task: task.number)
    begun = [task for task in tasks if os.path.exists(os.path.join(folder, task.file_name))]
    names = sorted({shard.path for task in begun or tasks[:1] for shard, _ in task.ranges})
    shown = " or ".join(names[:3]) + (" or another shard" if len(names) > 3 else "")
    return SourceError(
        f"a worker process died while it counted {shown}: most often memory ran out, so use fewer "
        "workers (in a script of your own, call this under `if __name__ == '__main__':`)"
    )


def _count(task: Task, counter: Counter, progress: Callable[[int], None] | None = None) -> pa.Table:
    tables = [schema.LENGTHS.empty_table()]
    first_id = task.first_id
    for shard, part in task.ranges:
        found = 0
        for table in shard_rows(shard, part, first_id, counter):
            tables.append(table)
            found += table.num_rows
            if progress is not None:
                progress(table.num_rows)
        if found != part.num_records:
            raise SourceError(
                f"{shard.path} changed while it was counted: {part.num_records} records before "
                f"and {found} now between bytes {part.start} and {part.end}; start again"
            )
        first_id += found
    return pa.concat_tables(tables).combine_chunks()


def _frequencies(table: pa.Table, name: str) -> dict[str, int]:
    counts = pc.value_counts(table.column(name).drop_null()).to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counts, key=lambda e: e["values"])}


def _source_sums(table: pa.Table) -> dict[str, tuple[int, int, int]]:
    flat = table.select(["source", "length"]).append_column(
        "bad", pc.equal(table.column("status"), "rejected").cast(pa.int64())
    )
    sums = flat.group_by("source").aggregate(
        [("length", "count"), ("bad", "sum"), ("length", "sum")]
    )
    return {
        row["source"]: (row["length_count"], row["bad_sum"], row["length_sum"])
        for row in sums.to_pylist()
    }
