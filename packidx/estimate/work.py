"""Tasks: which ranges of which shards make a part file, and counting one, here or in a pool."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import Any

import pyarrow as pa

from packidx import schema
from packidx.errors import OptionError, SourceError
from packidx.estimate.parts import Part, Place, begin_part, is_begun, write_part
from packidx.estimate.recipe import Recipe, RecordCounter
from packidx.estimate.rows import ShardInfo, shard_rows
from packidx.records.sources import TASK_BYTES, Range, ShardScan


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
            if ranges and nbytes + part.nbytes > TASK_BYTES * 3 // 2:
                close()
            ranges.append((shard, part))
            nbytes += part.nbytes
    if ranges or not tasks:
        close()
    return tasks


def run_task(
    task: Task, place: Place, counter: RecordCounter, progress: Callable[[int], None] | None = None
) -> Part:
    """Count one task's records and write its part file.

    Raises:
        SourceError: a shard cannot be read or is no longer what was scanned.
        OSError: the part cannot be written.
    """
    temporary = begin_part(place, task.number)
    table = _count(task, counter, progress)
    return write_part(place, task.number, table, temporary)


class WorkerDied(Exception):
    """A process of the pool ended, whoever or whatever ended it.

    Args:
        waiting: numbers of the items that were not done.
    """

    def __init__(self, waiting: Sequence[int]) -> None:
        super().__init__()
        self.waiting = sorted(waiting)


def run_tasks(
    tasks: Sequence[Task],
    place: Place,
    recipe: Recipe,
    fingerprints: Sequence[str | None],
    workers: int,
) -> Iterator[Part]:
    """Parts as they are finished, in any order, counted by `workers` processes; see `run_pool`.

    Raises:
        SourceError: also when a worker process dies.
    """
    call = functools.partial(_run_task, place=place)
    try:
        for _, part in run_pool(call, tasks, recipe, fingerprints, workers):
            yield part
    except WorkerDied as died:
        raise _died([tasks[number] for number in died.waiting], place) from None


def _run_task(task: Task, counter: RecordCounter, place: Place) -> Part:
    return run_task(task, place, counter)


def run_pool(
    call: Callable[[Any, RecordCounter], Any],
    items: Sequence[Any],
    recipe: Recipe,
    fingerprints: Sequence[str | None],
    workers: int,
) -> Iterator[tuple[int, Any]]:
    """(number, ``call(item, counter)``) of every item, as they are done, in any order.

    Args:
        call: picklable.
        items: what is to be done; few, or small.
        recipe: the counter of each process.
        fingerprints: `RecordCounter.fingerprints` of the parent's.
        workers: processes.

    Raises:
        OptionError: the recipe holds an object that cannot be sent to another process.
        WorkerDied: a process ended.
    """
    _check_picklable(recipe)
    executor = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_start_worker,
        initargs=(recipe, tuple(fingerprints)),
    )
    try:
        waiting: dict[Future[Any], int] = {
            executor.submit(_run_in_worker, call, item): number for number, item in enumerate(items)
        }
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: waiting[f]):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    raise WorkerDied(list(waiting.values())) from None
                yield waiting.pop(future), result
    finally:
        processes = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in processes:
            with contextlib.suppress(Exception):
                process.join(5)


def _check_picklable(recipe: Recipe) -> None:
    try:
        pickle.dumps(recipe)
    except Exception as error:
        raise OptionError(
            f"the encoder or transform cannot be sent to worker processes ({error}): name it as "
            "'module:NAME', or take workers=1"
        ) from None


_counter: RecordCounter | None = None
_failure: Exception | None = None


def _start_worker(recipe: Recipe, fingerprints: Sequence[str | None]) -> None:
    global _counter, _failure
    # The processes are the parallelism, also of what a user's encoder imports.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _counter = recipe.build_same(fingerprints)
    except Exception as error:  # raised by the task: a failing initializer says nothing
        _failure = error


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and the pool's queues do not either."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run_in_worker(call: Callable[[Any, RecordCounter], Any], item: Any) -> Any:
    if _failure is not None:
        raise _failure
    if _counter is None:
        raise RuntimeError("the worker was not started by run_pool")
    return call(item, _counter)


def _died(tasks: Sequence[Task], place: Place) -> SourceError:
    begun = [task for task in tasks if is_begun(place, task.number)]
    names = sorted({shard.path for task in begun or tasks[:1] for shard, _ in task.ranges})
    shown = " or ".join(names[:3]) + (" or another shard" if len(names) > 3 else "")
    return SourceError(
        f"a worker process died while it counted {shown}: most often memory ran out, so use fewer "
        "workers; finished parts are kept (in a script of your own, call this under "
        "`if __name__ == '__main__':`)"
    )


def _count(
    task: Task, counter: RecordCounter, progress: Callable[[int], None] | None = None
) -> pa.Table:
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
