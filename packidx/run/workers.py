"""Workers that do calls of a function: processes of this machine, or Ray's."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, Protocol, Self

from packidx.errors import OptionError, SourceError

Call = Callable[[Any, Any], Any]
"""``call(item, made)``: what is done with an item."""
Setup = Callable[[], Any]
"""Makes what the calls need: once in each process, if it is in use for long enough."""

_AHEAD = 2  # items per process that are being done, or wait


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
    """As many as were asked for, or as many as there are CPUs for this process.

    Raises:
        OptionError: fewer than one were asked for.
    """
    if asked is None:
        return num_cpus()
    if asked < 1:
        raise OptionError(f"workers is {asked}: give at least 1")
    return asked


def num_cpus() -> int:
    """CPUs that this process may use: by its affinity, and by the quota of its control group.

    A container of 4 CPUs on a machine of 128 sees all of them; only these two know better.
    """
    from loky import cpu_count

    return int(cpu_count())


class WorkerDied(Exception):
    """A process ended, whoever or whatever ended it.

    Args:
        told: what is known of its end, for the user.
        hint: what else may be the reason.

    Attributes:
        waiting: numbers of the items that were begun and not done.
    """

    def __init__(self, told: str = "", hint: str = "") -> None:
        super().__init__(told)
        self.told, self.hint = told, hint
        self.waiting: list[int] = []

    def error(self, doing: str, cure: str = "use fewer workers") -> SourceError:
        """The sentence for the user: what the process did (``'counted a.jsonl'``), what to do."""
        return SourceError(
            f"a worker process died while it {doing}: {self.told}most often memory ran out, so "
            f"{cure}{self.hint}"
        )


class Workers(ABC):
    """Processes that do calls. What they do may be done twice, even by two of them at once."""

    def run(
        self,
        call: Call,
        items: Collection[Any],
        setup: Setup,
        *,
        here: Setup | None = None,
        in_turn: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, made)``) of every item.

        Where items fail, the error is that of the first of them, as if they were done in turn.

        Args:
            call: picklable.
            items: what is to be done; small. They are taken as they can be done.
            setup: picklable; ``made = setup()`` in a process that has not made it yet.
            here: instead of `setup` where this process does the work itself.
            in_turn: the items' order, in which few results wait for an earlier one; else any.

        Raises:
            OptionError: an object of the user's cannot be sent to another process.
            WorkerDied: a process ended.
            SourceError, MismatchError, …: what `call` and `setup` raise.
        """
        if not items:
            return
        if not self.takes(len(items)):
            made = (here or setup)()
            for number, item in enumerate(items):
                yield number, call(item, made)
            return
        self.start(setup, len(items))
        upcoming = enumerate(items)
        pending: dict[Future[Any], int] = {}
        results: dict[int, Any] = {}
        failed: tuple[int, Exception] | None = None
        following = 0
        try:
            while True:
                while failed is None and len(pending) + len(results) < self._ahead():
                    if (entry := next(upcoming, None)) is None:
                        break
                    pending[self._submit(call, entry[1])] = entry[0]
                if failed is not None and failed[0] < min(pending.values(), default=len(items)):
                    raise failed[1]
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    number = pending[future]
                    try:
                        results[number] = self._result(future)
                    except WorkerDied:
                        raise
                    except Exception as error:
                        if failed is None or number < failed[0]:
                            failed = number, error
                    del pending[future]
                while results and (not in_turn or following in results):
                    following = following if in_turn else min(results)
                    yield following, results.pop(following)
                    following += 1
        except WorkerDied as died:
            died.waiting = sorted(pending.values())
            raise
        finally:
            for future in pending:  # the caller has had enough, or an item failed
                self._cancel(future)

    @abstractmethod
    def takes(self, num_items: int) -> bool:
        """Return whether so many items are for them, rather than for the calling process."""

    @abstractmethod
    def start(self, setup: Setup, num_items: int | None = None) -> None:
        """Let them begin to make what `setup` makes, before there is anything to do.

        Args:
            setup: as of `run`.
            num_items: how many there will be; None where nobody knows yet.

        Raises:
            OptionError: `setup` holds an object that cannot be sent to another process.
        """

    @abstractmethod
    def close(self) -> None:
        """End them, whatever they do."""

    @abstractmethod
    def _ahead(self) -> int:
        """Return how many items are begun or wait for an earlier one: so that nobody waits for
        work, and no memory fills."""

    @abstractmethod
    def _submit(self, call: Call, item: Any) -> Future[Any]:
        """Begin an item."""

    @abstractmethod
    def _result(self, future: Future[Any]) -> Any:
        """Return the result of an item that is done."""

    def _cancel(self, future: Future[Any]) -> None:
        """Let go of an item: nobody wants it any more."""
        future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalWorkers(Workers):
    """Processes of this machine, so many at most."""

    def __init__(self, processes: int) -> None:
        self._most = processes
        self._processes = 0
        self._setup: Setup | None = None
        self._executor: ProcessPoolExecutor | None = None

    def takes(self, num_items: int) -> bool:
        """Return whether there is work for more than one process."""
        return min(self._most, num_items) > 1

    def start(self, setup: Setup, num_items: int | None = None) -> None:
        """As of `Workers`; those of another `setup` are ended."""
        if self._executor is not None and setup == self._setup:
            return
        self.close()
        try:
            needs_script = b"__main__" in pickle.dumps(setup)
        except Exception as error:
            raise OptionError(
                f"the encoder or transform cannot be sent to worker processes ({error}): name it "
                "as 'module:NAME', or take workers=1"
            ) from None
        self._setup = setup
        self._processes = self._most if num_items is None else min(self._most, num_items)
        context = SpawnContext() if needs_script else _WithoutScript()
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

    def _ahead(self) -> int:
        return _AHEAD * self._processes

    def _submit(self, call: Call, item: Any) -> Future[Any]:
        if self._executor is None:
            raise RuntimeError("the processes are closed")
        try:
            return self._executor.submit(_run, call, item)
        except BrokenProcessPool as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            raise WorkerDied(
                hint=" (a script that defines the encoder itself calls this under `if __name__ == "
                "'__main__':`)"
            ) from None


class _Process(SpawnProcess):
    def start(self) -> None:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WithoutScript(SpawnContext):
    """Starts processes that do not run the user's script again: it need not say
    ``if __name__ == "__main__":`` to call packidx."""

    Process = _Process


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
