"""Who counts: worker processes, each with a counter of its own, or Ray's (`ray_pool`).

The processes load theirs while the parent is still looking at the sources: a tokenizer and what is
known of its tokens take a second or two.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Protocol

from packidx.errors import OptionError
from packidx.estimate.counter import CounterSettings, RecordCounter, checked
from packidx.processor.compared import Compared
from packidx.run.local import follow_parent, interrupts_held

Call = Callable[[Any, RecordCounter], Any]


class Workers(Protocol):
    """Processes that count by a settings, here or elsewhere; what they do may be done twice."""

    def start(self) -> None:
        """Let them begin to load."""

    def run(
        self, call: Call, items: Sequence[Any], counter: RecordCounter
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, counter)``) of every item, as they are done, in any order."""

    def takes(self, num_items: int) -> bool:
        """Whether so many items are for them, rather than for the calling process."""

    def others(self, settings: CounterSettings, num_items: int) -> Workers:
        """Workers by another settings, for so many items."""

    def __enter__(self) -> Workers: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them, whatever they do."""


_ADVICE = (
    "most often memory ran out, so use fewer workers; finished parts are kept (in a script of your "
    "own, call this under `if __name__ == '__main__':`)"
)


class WorkerDied(Exception):
    """A process of the pool ended, whoever or whatever ended it.

    Args:
        waiting: numbers of the items that were not done.
        advice: what to do, for the user; ends the sentence.
    """

    def __init__(self, waiting: Sequence[int], advice: str = _ADVICE) -> None:
        super().__init__()
        self.waiting = sorted(waiting)
        self.advice = advice


class Pool:
    """Processes that count by a settings.

    Args:
        settings: the counter of each process.
        workers: processes; they start with the first item, or with `start`.
    """

    def __init__(self, settings: CounterSettings, workers: int) -> None:
        self.settings = settings
        self.workers = workers
        self._executor: ProcessPoolExecutor | None = None

    def start(self) -> None:
        """Let the processes begin to load.

        Raises:
            OptionError: the settings holds an object that cannot be sent to another process.
        """
        if self._executor is None:
            _check_picklable(self.settings)
            self._executor = ProcessPoolExecutor(
                max_workers=self.workers,
                mp_context=get_context("spawn"),
                initializer=_start_worker,
                initargs=(self.settings,),
            )
            with interrupts_held():
                for _ in range(self.workers):  # an idle process takes the next item: start them all
                    self._executor.submit(os.getpid)

    def run(
        self, call: Call, items: Sequence[Any], counter: RecordCounter
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, counter)``) of every item, as they are done, in any order.

        Args:
            call: picklable.
            items: what is to be done; few, or small.
            counter: the parent's; the processes must have the same.

        Raises:
            OptionError: as `start`.
            MismatchError: a process loaded another processor, encoder or transform.
            WorkerDied: a process ended.
        """
        self.start()
        assert self._executor is not None
        known = counter.decided, counter.identity()
        try:
            waiting: dict[Future[Any], int] = {
                self._executor.submit(_run_in_worker, call, item, *known): number
                for number, item in enumerate(items)
            }
        except BrokenProcessPool:
            raise WorkerDied(range(len(items))) from None
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: waiting[f]):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    raise WorkerDied(list(waiting.values())) from None
                yield waiting.pop(future), result

    def takes(self, num_items: int) -> bool:
        """Whether there is work for more than one process."""
        return min(self.workers, num_items) > 1

    def others(self, settings: CounterSettings, num_items: int) -> Pool:
        """Processes of their own."""
        return Pool(settings, max(1, min(self.workers, num_items)))

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

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_picklable(settings: CounterSettings) -> None:
    try:
        pickle.dumps(settings)
    except Exception as error:
        raise OptionError(
            f"the encoder or transform cannot be sent to worker processes ({error}): name it as "
            "'module:NAME', or take workers=1"
        ) from None


_settings: CounterSettings | None = None
_counter: RecordCounter | None = None
_failure: Exception | None = None


def _start_worker(settings: CounterSettings) -> None:
    global _settings, _counter, _failure
    follow_parent()
    prepare_process()
    _settings = settings
    try:
        _counter = settings.build()
        _counter.warm()
    except Exception as error:  # raised by the item: a failing initializer says nothing
        _failure = error


def prepare_process() -> None:
    """Settings of a process that counts."""
    # The processes are the parallelism, also of what a user's encoder imports.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    gc.set_threshold(100_000, 50, 100)  # records are many small objects, and hold no cycles


def _run_in_worker(
    call: Call, item: Any, decided: tuple[str, Compared], identity: tuple[str | None, ...]
) -> Any:
    if _failure is not None:
        raise _failure
    if _counter is None or _settings is None:
        raise RuntimeError("the worker was not started by a Pool")
    return call(item, checked(_counter, _settings, decided, identity))
