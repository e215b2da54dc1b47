"""Run calls in worker processes: of this machine by loky, or Ray's.

A few tasks are in flight at a time, so that the caller's memory does not grow with their number.
What a task does may be done twice, even by two processes at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any, Protocol, Self

import cloudpickle
from loky import ProcessPoolExecutor, cpu_count, process_executor

from packidx.errors import OptionError, SourceError

Call = Callable[[Any, Any], Any]
"""``call(item, made)``: what is done with an item."""
Setup = Callable[[], Any]
"""Makes what the calls need, once in each process."""

AHEAD = 2
"""Items per process that are in flight, or wait for an earlier one."""
MEMORY = "most often memory ran out, so use fewer workers (in plan, smaller windows)"


class Progress(Protocol):
    """Tells how far a long job is, called from the caller's own thread; the library prints nothing.

    What is called by it may be any callable of these arguments.
    """

    def __call__(self, doing: str, done: int, total: int, /) -> None:
        """`done` of `total`: bytes where `doing` is ``'scan'``, records in ``'count'`` and
        ``'images'``, packs in ``'packs'``, files in ``'upload'`` and
        ``'files'``, which are told by several threads."""


def silent(doing: str, done: int, total: int) -> None:
    """Tell nobody."""


def num_workers(asked: int | None) -> int:
    """Return as many as were asked for, or as many as there are CPUs for this process: by its
    affinity, and its control group's quota.

    Raises:
        OptionError: fewer than one were asked for.
    """
    if asked is not None and asked < 1:
        raise OptionError(f"workers is {asked}: give at least 1")
    return asked or int(cpu_count())


class Workers:
    """Processes of this machine, so many at most; those of Ray are `packidx.run.cluster`'s."""

    def __init__(self, processes: int) -> None:
        self._most = self._processes = processes
        self._setup: Setup | None = None
        self._executor: Any = None

    def map(
        self, call: Call, items: Sequence[Any], setup: Setup, *, here: Setup | None = None
    ) -> Iterator[Any]:
        """Yield ``call(item, made)`` of every item, in order, with ``made = setup()``.

        Args:
            call: picklable.
            items: small.
            setup: picklable; run once in each process.
            here: replaces `setup` if this process does the work itself.

        Raises:
            OptionError: an object of the user's cannot be sent to another process.
            SourceError: a process ended.
            SourceError, MismatchError, …: what `call` and `setup` raise.
        """
        if items and not self.takes(len(items)):
            made = (here or setup)()
            for item in items:
                yield call(item, made)
        elif items:
            self._start(setup, len(items))
            pending = deque[Any]()
            try:
                for item in items:
                    if len(pending) >= self._ahead():
                        yield self._result(pending.popleft())
                    pending.append(self._submit(call, item))
                while pending:
                    yield self._result(pending.popleft())
            except process_executor.BrokenProcessPool:
                raise SourceError(f"a worker process died: {MEMORY}") from None
            finally:
                for handle in pending:  # the caller stopped, or an item failed
                    self._cancel(handle)

    def takes(self, num_items: int) -> bool:
        """Return True if so many items are for them, rather than for the calling process."""
        return min(self._most, num_items) > 1

    def _start(self, setup: Setup, num_items: int) -> None:
        """Start the processes, unless they run with this setup already."""
        if self._executor is not None and setup == self._setup:
            return
        self.close()
        arguments = packed(setup), os.getpid()
        self._setup, self._processes = setup, min(self._most, num_items)
        self._executor = ProcessPoolExecutor(
            self._processes, initializer=_start_process, initargs=arguments
        )
        # Without psutil and pgrep loky warns, and kills the processes without their children.
        warnings.filterwarnings("ignore", "Failed to kill subprocesses", UserWarning)
        with _interrupts_held():
            self._executor.submit(os.getpid)  # starts them all

    def close(self) -> None:
        """End the processes, whatever they do."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None

    def _ahead(self) -> int:
        return AHEAD * self._processes

    def _submit(self, call: Call, item: Any) -> Any:
        """Return a handle of a call in another process."""
        return self._executor.submit(_run, call, item)

    def _result(self, handle: Any) -> Any:
        return handle.result()

    def _cancel(self, handle: Any) -> None:
        handle.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def packed(setup: Setup) -> bytes:
    """Pickle a setup, functions of the caller's script by value.

    Raises:
        OptionError: it holds an object that cannot be sent to another process.
    """
    try:
        return bytes(cloudpickle.dumps(setup))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise OptionError(
            f"the encoder or transform cannot be sent to worker processes ({reason}): name it as "
            "'module:NAME', or take workers=1"
        ) from None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT while processes are started in the block. They inherit the mask, so that Ctrl-C
    stops none of them, with a traceback, before it ignores the signal."""
    resource_tracker.ensure_running()  # Python 3.11 unblocks SIGINT when it starts this process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_made: Any = None  # of a worker process
_failure: Exception | None = None


def _start_process(setup: bytes, parent: int) -> None:
    """Ignore Ctrl-C, on which the parent ends its workers; end with the parent; run `setup`."""
    global _made, _failure
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf  # a process that grows is not started anew
    try:
        _made = pickle.loads(setup)()
    except Exception as error:  # raised by the items: loky would only log it
        _failure = error


def _run(call: Call, item: Any) -> Any:
    if _failure is not None:
        raise _failure
    return call(item, _made)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a killed one cannot end its workers."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
