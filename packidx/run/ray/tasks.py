"""Calls as Ray tasks, on this machine or on the cluster that RAY_ADDRESS names.

A few tasks are under way at a time, so that the caller's memory does not grow with their number.
Ray repeats what a killed process or node had begun: a task must bear being done twice, even by two
processes at once. Ray's documentation: https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import pickle
import platform
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from packidx.errors import MismatchError, MissingExtraError, OptionError, PackidxError, SourceError
from packidx.run.workers import num_workers
from packidx.software import software

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""

_RETRIES = 3  # of a task whose process or node died
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


def wants_ray(engine: str) -> bool:
    """Whether `engine`, one of `ENGINES`, is Ray; which is not loaded yet.

    Raises:
        OptionError: there is no such engine.
        MissingExtraError: Ray is not installed.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine is {engine!r}: choose one of {', '.join(ENGINES)}")
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "--engine ray needs Ray, which is not here: pip install 'packidx[ray]'"
        )
    return engine == "ray"


@dataclass(frozen=True, slots=True)
class Shared:
    """A value that many tasks need: a process fetches it once, and keeps what it made of it."""

    token: str
    """Of this value and no other one."""
    refs: tuple[Any, ...]
    """Ray's reference; in a tuple, as Ray replaces an argument that is one by its value."""

    def made(self, make: Callable[[Any], Any]) -> Any:
        """``make(value)``, in a task: that of an earlier one of this process where there is one."""
        global _kept
        if _kept is None or _kept[0] != self.token:
            import ray

            _kept = None  # let go of before the next one is made
            _kept = self.token, make(pickle.loads(ray.get(self.refs[0])))
        return _kept[1]


_kept: tuple[str, Any] | None = None


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
        self._context: _Context | None = None
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
        with _quiet():
            import ray

            if not ray.is_initialized():
                self._before = _sigterm()
                _connect(ray, self._workers)
                self._is_ours = True
                # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
                self._worker_module = ray._private.worker
                self._worker_module._worker_logs_enabled = False
        self._ray = ray
        self._task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_task)
        here = ray.get_runtime_context().get_node_id()
        self._context = _Context(os.getcwd(), tuple(sys.path), _versions(), here)

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
            with _quiet():
                self._ray.shutdown()
            _sigterm(self._before)
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

    def _outcome(self, ref: Any, pending: dict[Any, int]) -> _Outcome:
        from ray.exceptions import RayError, RayTaskError

        try:
            outcome: _Outcome = self._ray.get(ref)
        except RayTaskError as error:  # it did not come as far as `_run_task`, or back
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise SourceError(
                f"a Ray node cannot run packidx ({reason}): install packidx {_versions()[0][1]} "
                "there, too"
            ) from None
        except RayError as error:
            raise RayWorkerDied(pending.values(), type(error).__name__) from None
        self.done_by[outcome.node] = self.done_by.get(outcome.node, 0) + 1
        return outcome

    def _told(self, outcome: _Outcome) -> Exception:
        """The error of a task, with the node where it is not the driver's own."""
        error = outcome.error
        assert error is not None and self._context is not None
        if outcome.node == self._context.node or not isinstance(error, (OSError, SourceError)):
            return error
        return SourceError(
            f"the Ray node {outcome.host} could not do its part: {error} (every node must find "
            "sources, media and output under the same paths, as in a shared folder)"
        )


@dataclass(frozen=True, slots=True)
class _Context:
    """What a task's process must have as the driver has it."""

    folder: str
    path: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    node: str


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any
    error: Exception | None
    node: str
    host: str


def _connect(ray: Any, workers: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == "local":
        cpus = num_workers(workers)
        options |= {"num_cpus": cpus, "include_dashboard": False}
    try:
        _knock(address)
        ray.init(address=address, **options)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        with contextlib.suppress(Exception):
            ray.shutdown()
        if address == "local":
            raise SourceError(f"Ray does not start here ({reason}): use --engine local") from None
        if "ersion mismatch" in reason:
            raise MismatchError(
                f"the cluster at RAY_ADDRESS {address} cannot be joined ({reason}): install its "
                "versions of Ray and Python"
            ) from None
        raise SourceError(
            f"no Ray cluster answers at RAY_ADDRESS {address} ({reason}): start one with `ray "
            "start --head`; if one is there and asks for tokens, as Ray does from 2.60 on, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; or unset RAY_ADDRESS to use this machine"
        ) from None


def _knock(address: str) -> None:
    """Raise an OSError where nobody listens: Ray itself would try for a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray without its statistics, notes and warnings."""
    # A task that runs out of memory is repeated for ever unless the driver's Ray is told otherwise.
    defaults = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(_RETRIES)}
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _sigterm(put_back: Any = None) -> Any:
    """The handler of SIGTERM, in whose place Ray puts its own; or that one put back."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if put_back is not None:
        signal.signal(signal.SIGTERM, put_back)
    return signal.getsignal(signal.SIGTERM)


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Of what decides the output's bytes."""
    return tuple((name, found) for name, found in software().items() if name != "python")


def _run_task(context: _Context, work: bytes, shared: Shared | None) -> _Outcome:
    """In a process of Ray's, with the driver's folder and import path: a pickled call and item."""
    import ray

    value: Any = None
    error: Exception | None = None
    try:
        _check_versions(context)
        sys.path += [entry for entry in context.path if entry not in sys.path]
        with _folder(context.folder):
            call, item = pickle.loads(work)  # of modules that only this path may lead to
            value = call(item, shared)
    except Exception as caught:
        error = _sendable(caught)
    return _Outcome(value, error, ray.get_runtime_context().get_node_id(), platform.node())


def _check_versions(context: _Context) -> None:
    for (name, ours), (_, theirs) in zip(_versions(), context.versions, strict=True):
        if ours != theirs:
            raise MismatchError(
                f"a Ray node has {name} {ours}, the driver {theirs}: install the same one, as the "
                "output's bytes may depend on it"
            )


@contextlib.contextmanager
def _folder(path: str) -> Iterator[None]:
    """Relative paths start where the driver's do, where there is such a folder."""
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def _sendable(error: Exception) -> Exception:
    """`error` without its trace, or, where it cannot be pickled, its text."""
    bare = error.with_traceback(None)
    bare.__cause__ = bare.__context__ = None
    try:
        pickle.loads(pickle.dumps(bare))
    except Exception:
        return PackidxError(f"{type(error).__name__}: {error}")
    return bare
