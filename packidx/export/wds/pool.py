"""Packs read by several processes, handed over in order, a few ahead of the writer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from packidx.errors import SourceError
from packidx.export.wds.pack import PackMembers, pack_members
from packidx.index import Index
from packidx.records.fetch import Fetcher
from packidx.run.local import follow_parent, interrupts_held

_PACKS_PER_PROCESS = 16
"""Fewer are read before another process has started."""
_AHEAD = 2
"""Packs per process that are read or wait: they are whole in memory."""

Named = tuple[int, str]
"""A pack's number and key."""


def read_packs(
    index: Index, packs: Sequence[Named], workers: int
) -> Generator[PackMembers, None, None]:
    """The packs in order; the same for any number of workers. Close it to end the processes.

    Raises:
        SourceError: a sample cannot be read, or a process died.
        FormatError: the index is damaged.
    """
    workers = min(workers, len(packs) // _PACKS_PER_PROCESS)
    if workers <= 1:
        fetcher = Fetcher(index)
        for number, key in packs:
            yield pack_members(fetcher, number, key)
        return
    executor = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start_worker, initargs=(index,)
    )
    with interrupts_held():
        executor.submit(os.getpid)  # which starts all processes
    try:
        waiting: deque[Future[PackMembers]] = deque()
        upcoming = iter(packs)
        for one in upcoming:
            waiting.append(executor.submit(_read, one))
            if len(waiting) >= workers * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise SourceError(
            "a worker process died while it read packs: most often memory ran out, so use fewer "
            "workers; what is written is kept (in a script of your own, call this under `if "
            "__name__ == '__main__':`)"
        ) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


_fetcher: Fetcher | None = None


def _start_worker(index: Index) -> None:
    global _fetcher
    follow_parent()
    _fetcher = Fetcher(index)


def _read(one: Named) -> PackMembers:
    if _fetcher is None:
        raise RuntimeError("the worker was not started by read_packs")
    return pack_members(_fetcher, *one)
