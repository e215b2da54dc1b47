"""Ray's processes as workers: the same tasks, into the same place, on any number of machines."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from packidx.estimate.counter import CounterSettings, RecordCounter, checked
from packidx.estimate.pool import Call, Pool, WorkerDied, Workers, prepare_process
from packidx.processor.compared import Compared
from packidx.records.media.opener import forget_sizes
from packidx.records.media.video import forget_videos
from packidx.run.engines import wants_ray
from packidx.run.ray.process import Shared
from packidx.run.ray.tasks import RayTasks, RayWorkerDied


def open_workers(engine: str, settings: CounterSettings, workers: int | None, cpus: int) -> Workers:
    """Who counts by `settings`.

    Args:
        engine: `packidx.run.engines.ENGINES`.
        settings: the counter of each process.
        workers: processes, or tasks of Ray at a time, as the user says; None for all there are.
        cpus: processes on this machine.

    Raises:
        OptionError, MissingExtraError: there is no such engine, or it is not installed.
    """
    if wants_ray(engine):
        return RayPool(settings, RayTasks(workers))
    return Pool(settings, cpus)


class RayPool:
    """Processes of Ray that count by a settings (`packidx.estimate.pool.Workers`).

    Args:
        settings: the counter of each process.
        tasks: Ray.
        closes: whether `close` is the end of `tasks`, too.
    """

    def __init__(self, settings: CounterSettings, tasks: RayTasks, closes: bool = True) -> None:
        self.settings = settings
        self.tasks = tasks
        self._closes = closes
        self._shared: Shared | None = None

    def start(self) -> None:
        """Join or start Ray; its processes load with their first task.

        Raises:
            OptionError: the settings holds an object that cannot be sent to another process.
            SourceError, MismatchError: there is no such Ray.
        """
        self._sent()

    def _sent(self) -> Shared:
        if self._shared is None:
            self._shared = self.tasks.share(self.settings)
        return self._shared

    def run(
        self, call: Call, items: Sequence[Any], counter: RecordCounter
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, counter)``) of every item, as they are done, in any order.

        Raises:
            OptionError, SourceError, MismatchError: as `start`, or a node cannot do it.
            WorkerDied: Ray gave a task up.
        """
        shared = self._sent()
        known = counter.decided, counter.identity()
        there = functools.partial(_run_there, call=call, known=known)
        try:
            yield from self.tasks.run(there, items, shared)
        except RayWorkerDied as died:
            raise WorkerDied(
                died.waiting,
                f"Ray gave it up ({died.reason}); most often memory ran out, so use fewer "
                "workers; finished parts are kept",
            ) from None

    def takes(self, num_items: int) -> bool:
        """Ray was asked for: whatever there is, is done there."""
        return num_items > 0

    def others(self, settings: CounterSettings, num_items: int) -> RayPool:
        """The same processes, by another settings."""
        return RayPool(settings, self.tasks, closes=False)

    def close(self) -> None:
        """Leave Ray."""
        self._shared = None
        if self._closes:
            self.tasks.close()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _run_there(
    item: Any,
    shared: Shared,
    call: Call,
    known: tuple[tuple[str, Compared], tuple[str | None, ...]],
) -> Any:
    settings, counter = shared.made(_build)
    return call(item, checked(counter, settings, *known))


def _build(settings: CounterSettings) -> tuple[CounterSettings, RecordCounter]:
    prepare_process()
    forget_sizes()  # a process of the user's own session may have seen the media in an earlier run
    forget_videos()
    counter = settings.build()
    counter.warm()
    return settings, counter
