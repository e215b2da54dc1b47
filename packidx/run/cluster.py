"""Calls as Ray tasks, on this machine or on the cluster that RAY_ADDRESS names.

A few tasks are under way at a time, so that the caller's memory does not grow with their number.
Ray repeats what a killed process or node had begun: a task must bear being done twice, even by two
processes at once. Ray's documentation: https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import platform
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from packidx.errors import MismatchError, OptionError, PackidxError, SourceError
from packidx.run.workers import Call, Setup, WorkerDied, Workers, num_workers
from packidx.software import software

_RETRIES = 3  # of a task whose process or node died
_AHEAD = 2  # tasks per CPU that are being done, or wait


class RayWorkers(Workers):
    """Processes of Ray's, on any number of machines.

    Args:
        workers: tasks at a time; as many as keep all CPUs busy by default.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._session = contextlib.ExitStack()
        self._ray: Any = None
        self._task: Any = None
        self._context: Context | None = None
        self._setup: Setup | None = None
        self._shared: SharedSetup | None = None
        self._references: dict[Future[Any], Any] = {}

    def takes(self, num_items: int) -> bool:
        """Ray was asked for: whatever there is, is done there."""
        return num_items > 0

    def start(self, setup: Setup, num_items: int | None = None) -> None:
        """As of `Workers`; Ray's processes begin with their first task.

        Raises:
            OptionError: `setup` holds an object that cannot be sent to another process.
            MismatchError, SourceError: as of `_ray_session`.
        """
        if self._ray is None:
            self._ray = self._session.enter_context(_ray_session(self._workers))
            self._task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(run_task)
            node = self._ray.get_runtime_context().get_node_id()
            self._context = Context(os.getcwd(), tuple(sys.path), deciding_versions(), node)
        if self._shared is not None and setup == self._setup:
            return
        try:
            packed = self._ray.cloudpickle.dumps(setup)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise OptionError(
                f"the encoder or transform cannot be sent to Ray's processes ({reason}): name it "
                "as 'module:NAME'"
            ) from None
        self._setup = setup
        self._shared = SharedSetup(secrets.token_hex(16), (self._ray.put(packed),))

    def close(self) -> None:
        """Leave Ray, and end it where it was started here."""
        self._session.close()
        self._ray = self._task = self._context = self._shared = None

    def _ahead(self) -> int:
        """So many tasks that no CPU waits for the next; nodes may come and go."""
        most = self._workers
        return most or _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def _submit(self, call: Call, item: Any) -> Future[Any]:
        work = self._ray.cloudpickle.dumps((call, item))
        reference = self._task.remote(self._context, work, self._shared)
        future: Future[Any] = reference.future()
        self._references[future] = reference
        return future

    def _result(self, future: Future[Any]) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            self._references.pop(future)
            outcome: Outcome = future.result()
        except RayTaskError as error:  # it did not come as far as `run_task`, or back
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            ours = deciding_versions()[0][1]
            raise SourceError(
                f"a Ray node cannot run packidx ({reason}): install packidx {ours} there, too"
            ) from None
        except RayError as error:
            raise WorkerDied(f"Ray gave it up ({type(error).__name__}); ") from None
        if outcome.error is None:
            return outcome.value
        here = self._context is not None and outcome.node == self._context.node
        if here or not isinstance(outcome.error, (OSError, SourceError)):
            raise outcome.error
        raise SourceError(
            f"the Ray node {outcome.host} could not do its part: {outcome.error} (every node must"
            " find sources, media and output under the same paths, as in a shared folder)"
        )

    def _cancel(self, future: Future[Any]) -> None:
        with contextlib.suppress(Exception):
            self._ray.cancel(self._references.pop(future), force=True)


@contextlib.contextmanager
def _ray_session(workers: int | None) -> Iterator[Any]:
    """Ray: in this process's own session, on the cluster that RAY_ADDRESS names, or a new one here,
    which ends with the block.

    Args:
        workers: CPUs of a new one; all that this process may use by default.

    Raises:
        MismatchError: the cluster runs another Ray or Python.
        SourceError: there is no cluster where RAY_ADDRESS says, or Ray cannot be started.
    """
    with _quiet():
        import ray

        is_ours = not ray.is_initialized()
        if is_ours:
            _connect(ray, workers)
            # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
            ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        if is_ours:
            with _quiet():
                ray.shutdown()
            ray._private.worker._worker_logs_enabled = True


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


class SharedSetup(NamedTuple):
    """A setup in Ray's store: a process fetches it once, and keeps what it made."""

    token: str
    """Of this setup and no other one."""
    refs: tuple[Any, ...]
    """Ray's reference; in a tuple, as Ray replaces an argument that is one by its value."""

    def made(self) -> Any:
        """``setup()``, in a task: that of an earlier one of this process where there is one."""
        global _kept
        if _kept is None or _kept[0] != self.token:
            import ray

            _kept = None  # let go of before the next one is made
            _kept = self.token, pickle.loads(ray.get(self.refs[0]))()
        return _kept[1]


_kept: tuple[str, Any] | None = None


class Context(NamedTuple):
    """What a task's process must have as the driver has it."""

    folder: str
    path: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    node: str


class Outcome(NamedTuple):
    """What came of a task, and on which node."""

    value: Any
    error: Exception | None
    node: str
    host: str


@functools.cache
def deciding_versions() -> tuple[tuple[str, str], ...]:
    """Names and versions of the software that decides the output's bytes."""
    return tuple(pair for pair in software().items() if pair[0] != "python")


def run_task(context: Context, work: bytes, setup: SharedSetup) -> Outcome:
    """In a process of Ray's, with the driver's folder and import path: a pickled call and item."""
    import ray

    value: Any = None
    error: Exception | None = None
    try:
        _check_versions(context)
        sys.path += [entry for entry in context.path if entry not in sys.path]
        with _folder(context.folder):
            call, item = pickle.loads(work)  # of modules that only this path may lead to
            value = call(item, setup.made())
    except Exception as caught:
        error = _sendable(caught)
    return Outcome(value, error, ray.get_runtime_context().get_node_id(), platform.node())


def _check_versions(context: Context) -> None:
    for (name, ours), (_, theirs) in zip(deciding_versions(), context.versions, strict=True):
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
