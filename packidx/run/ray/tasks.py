"""Calls as Ray tasks, on this machine or on the cluster that RAY_ADDRESS names.

A few tasks are under way at a time, so that the caller's memory does not grow with their number.
Ray repeats what a killed process or node had begun: a task must bear being done twice, even by two
processes at once. Ray's documentation: https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from packidx.errors import OptionError, SourceError
from packidx.run.ray.process import Context, Outcome, Shared, deciding_versions, run_task
from packidx.run.ray.session import RETRIES, connect, quiet, sigterm

_LOOK = 5.0  # seconds between two looks at the size of the cluster


class RayWorkerDied(Exception):
    """Ray gave a task up, whose processes died again and again.

    Args:
        waiting: numbers of the items that were not done.
        reason: Ray's name of what happened.
    """

    def __init__(self, waiting: Iterable[int], reason: str) -> None:
        super().__init__(reason)
        self.waiting = sorted(waiting)
        self.reason = reason


class RayTasks:
    """A session of Ray: this process's own, the cluster that RAY_ADDRESS names, or a new one here.

    Args:
        workers: tasks at a time; all CPUs there are by default.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._ray: Any = None
        self._task: Any = None
        self._is_ours = False
        self._before: Any = None
        self._worker_module: Any = None
        self._cpus, self._looked = 0, 0.0
        self._context: Context | None = None
        self.done_by: dict[str, int] = {}
        """Tasks that each node has done, by Ray's id of it."""

    def start(self) -> None:
        """Join or start Ray.

        Raises:
            MismatchError: the cluster runs another Ray or Python.
            SourceError: there is no cluster where RAY_ADDRESS says, or Ray cannot be started.
        """
        if self._ray is not None:
            return
        with quiet():
            import ray

            if not ray.is_initialized():
                self._before = sigterm()
                connect(ray, self._workers)
                self._is_ours = True
                # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
                self._worker_module = ray._private.worker
                self._worker_module._worker_logs_enabled = False
        self._ray = ray
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(run_task)
        here = ray.get_runtime_context().get_node_id()
        self._context = Context(os.getcwd(), tuple(sys.path), deciding_versions(), here)

    def share(self, value: Any) -> Shared:
        """Send a value to where the tasks are.

        Raises:
            OptionError: it holds an object that cannot be sent.
        """
        self.start()
        try:
            packed = self._ray.cloudpickle.dumps(value)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise OptionError(
                f"the encoder or transform cannot be sent to Ray's processes ({reason}): name it "
                "as 'module:NAME'"
            ) from None
        return Shared(secrets.token_hex(16), (self._ray.put(packed),))

    def run(
        self, call: Callable[..., Any], items: Iterable[Any], shared: Shared | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, shared)``) of every item, as they are done, in any order.

        Where items fail, the error is that of the first of them, as if they were done in turn.

        Args:
            call: can be pickled, and be done twice.
            items: what is to be done; small. They are taken as the tasks can take them.

        Raises:
            RayWorkerDied: a task was given up.
            SourceError, MismatchError, …: what `call` raises, and what keeps a node from doing it.
        """
        self.start()
        upcoming = enumerate(items)
        pending: dict[Any, int] = {}
        failed: tuple[int, Exception] | None = None
        try:
            while True:
                while failed is None and len(pending) < self._at_a_time():
                    following = next(upcoming, None)
                    if following is None:
                        break
                    number, item = following
                    work = self._ray.cloudpickle.dumps((call, item))
                    pending[self._task.remote(self._context, work, shared)] = number
                if failed is not None and failed[0] < min(pending.values(), default=1 << 62):
                    raise failed[1]
                if not pending:
                    return
                done, _ = self._ray.wait(list(pending), num_returns=1)
                more, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for ref in dict.fromkeys([*done, *more]):
                    outcome = self._outcome(ref, pending)
                    number = pending.pop(ref)
                    if outcome.error is None:
                        yield number, outcome.value
                    elif failed is None or number < failed[0]:
                        failed = number, self._told(outcome)
        finally:
            for ref in pending:  # the caller has had enough, or an item failed
                with contextlib.suppress(Exception):
                    self._ray.cancel(ref, force=True)

    def close(self) -> None:
        """Leave Ray, and end it where `start` has started it."""
        if self._is_ours and self._ray is not None:
            with quiet():
                self._ray.shutdown()
            sigterm(self._before)
            self._worker_module._worker_logs_enabled = True
        self._ray = self._task = self._context = None
        self._is_ours = False

    def __enter__(self) -> RayTasks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _at_a_time(self) -> int:
        """Tasks under way: so many that no CPU waits for the next; nodes may come and go."""
        if self._workers is not None:
            return self._workers
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
        return 2 * max(1, self._cpus)

    def _outcome(self, ref: Any, pending: dict[Any, int]) -> Outcome:
        from ray.exceptions import RayError, RayTaskError

        try:
            outcome: Outcome = self._ray.get(ref)
        except RayTaskError as error:  # it did not come as far as `run_task`, or back
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            ours = deciding_versions()[0][1]
            raise SourceError(
                f"a Ray node cannot run packidx ({reason}): install packidx {ours} there, too"
            ) from None
        except RayError as error:
            raise RayWorkerDied(pending.values(), type(error).__name__) from None
        self.done_by[outcome.node] = self.done_by.get(outcome.node, 0) + 1
        return outcome

    def _told(self, outcome: Outcome) -> Exception:
        """The error of a task, with the node where it is not the driver's own."""
        error = outcome.error
        assert error is not None and self._context is not None
        if outcome.node == self._context.node or not isinstance(error, (OSError, SourceError)):
            return error
        return SourceError(
            f"the Ray node {outcome.host} could not do its part: {error} (every node must find "
            "sources, media and output under the same paths, as in a shared folder)"
        )
