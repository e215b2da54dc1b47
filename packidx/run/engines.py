"""Who runs the tasks: processes of this machine, or Ray, by the caller's word alone."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Any

from packidx.errors import MissingExtraError, OptionError
from packidx.run.limits import num_workers
from packidx.run.workers import Call, Setup, WorkerDied, Workers

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""


def open_workers(engine: str, workers: int | None, most: int | None = None) -> Workers:
    """Those who run the tasks; Ray is loaded when there is something to do.

    Args:
        engine: one of `ENGINES`.
        workers: processes, or tasks of Ray at a time; None for all that there is room for.
        most: processes of this machine that there is enough to do for.

    Raises:
        OptionError: there is no such engine, or fewer than one worker.
        MissingExtraError: Ray is not installed.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine is {engine!r}: choose one of {', '.join(ENGINES)}")
    processes = num_workers(workers)
    if engine == "local":
        return LocalWorkers(processes if most is None else min(processes, most))
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "--engine ray needs Ray, which is not here: pip install 'packidx[ray]'"
        )
    from packidx.run.ray.workers import RayWorkers

    return RayWorkers(workers)


_AHEAD = 2  # items per process that are being done, or wait


class LocalWorkers(Workers):
    """Processes of this machine, so many at most."""

    def __init__(self, processes: int) -> None:
        self._most = processes
        self._processes = 0
        self._setup: Setup | None = None
        self._executor: ProcessPoolExecutor | None = None

    def takes(self, num_items: int) -> bool:
        """Whether there is work for more than one process."""
        return min(self._most, num_items) > 1

    def start(self, setup: Setup, num_items: int | None = None) -> None:
        """As of `Workers`; those of another `setup` are ended."""
        if self._executor is not None and setup == self._setup:
            return
        self.close()
        try:
            pickle.dumps(setup)
        except Exception as error:
            raise OptionError(
                f"the encoder or transform cannot be sent to worker processes ({error}): name it "
                "as 'module:NAME', or take workers=1"
            ) from None
        self._setup = setup
        self._processes = self._most if num_items is None else min(self._most, num_items)
        context = get_context("spawn")
        self._executor = ProcessPoolExecutor(self._processes, context, _start_process, (setup,))
        with _interrupts_held():
            for _ in range(self._processes):  # an idle process takes the next item: start them all
                self._executor.submit(os.getpid)

    def close(self) -> None:
        """End the processes, whatever they do."""
        if self._executor is None:
            return
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in processes:
            with contextlib.suppress(Exception):
                process.join(5)
        self._executor = None

    def _has_room(self, num_pending: int, num_results: int) -> bool:
        return num_pending + num_results < _AHEAD * self._processes

    def _begin(self, call: Call, item: Any) -> Future[Any]:
        if self._executor is None:
            raise RuntimeError("the processes are closed")
        try:
            return self._executor.submit(_run, call, item)
        except BrokenProcessPool as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _finished(self, pending: Collection[Future[Any]]) -> Iterable[Future[Any]]:
        return wait(pending, return_when=FIRST_COMPLETED).done

    def _result(self, handle: Future[Any]) -> Any:
        try:
            return handle.result()
        except BrokenProcessPool:
            raise WorkerDied(
                hint=" (in a script of your own, call this under `if __name__ == '__main__':`)"
            ) from None

    def _cancel(self, handle: Future[Any]) -> None:
        handle.cancel()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the block's end, in which processes are started: they inherit that, so none
    of them is stopped, with a traceback, before it can call `_follow_parent`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_made: Any = None  # of a worker process
_failure: Exception | None = None


def _start_process(setup: Setup) -> None:
    global _made, _failure
    _follow_parent()
    try:
        _made = setup()
    except Exception as error:  # raised by the item: a failing initializer says nothing
        _failure = error


def _run(call: Call, item: Any) -> Any:
    if _failure is not None:
        raise _failure
    return call(item, _made)


def _follow_parent() -> None:
    """Ignore Ctrl-C, of which the parent ends its workers, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and the pool's queues do not either."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
