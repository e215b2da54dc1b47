"""Run calls as Ray tasks, on this machine or on the cluster that RAY_ADDRESS names.

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
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from packidx.errors import MismatchError, MissingExtraError, OptionError, SourceError
from packidx.run.workers import AHEAD, MEMORY, Call, Setup, Workers, num_workers, packed
from packidx.software import software

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""
_RETRIES = 3  # of a task whose process or node died


def open_workers(engine: str, workers: int | None, most: int | None = None) -> Workers:
    """Return the workers that run the tasks; Ray is loaded when there is something to do.

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
        return Workers(processes if most is None else min(processes, most))
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "--engine ray needs Ray, which is not here: pip install 'packidx[ray]'"
        )
    return RayWorkers(workers)


Driver = tuple[str, list[str], dict[str, str]]
"""State that a task shares with the driver: folder, ``sys.path``, versions of software."""


class RayWorkers(Workers):
    """Processes of Ray's, on any number of machines.

    Args:
        workers: tasks at a time; by default as many as keep all CPUs busy.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(num_workers(workers))
        self._workers = workers
        self._session = contextlib.ExitStack()
        self._ray: Any = None
        self._task: Any = None

    def takes(self, num_items: int) -> bool:
        """Return True if there is anything to do: Ray was asked for."""
        return num_items > 0

    def _start(self, setup: Setup, num_items: int) -> None:
        if self._ray is None:
            self._ray = self._session.enter_context(_ray_session(self._workers))
        if self._task is None or setup != self._setup:
            task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(run_task)
            driver: Driver = os.getcwd(), list(sys.path), software()
            # In a tuple, as Ray replaces an argument that is a reference by its value.
            self._task = functools.partial(task.remote, driver, (self._ray.put(packed(setup)),))
            self._setup = setup

    def close(self) -> None:
        """Leave Ray, and end it where it was started here."""
        self._session.close()
        self._ray = self._task = None

    def _ahead(self) -> int:
        cpus = int(self._ray.cluster_resources().get("CPU", 0))  # nodes may come and go
        return self._workers or AHEAD * max(1, cpus)

    def _submit(self, call: Call, item: Any) -> Any:
        return self._task(self._ray.cloudpickle.dumps((call, item)))

    def _result(self, handle: Any) -> Any:
        from ray.exceptions import RayError, RaySystemError, RayTaskError

        try:
            return self._ray.get(handle)
        except RayTaskError as error:
            if isinstance(error.cause, Exception) and not isinstance(error.cause, RaySystemError):
                raise error.cause from None
            reason = (str(error).strip().splitlines() or [""])[-1][:300]  # it was not begun
            said = f"a Ray node cannot run packidx ({reason}): install packidx "
            raise SourceError(f"{said}{software()['packidx']} there, too") from None
        except RayError as error:
            name = type(error).__name__
            raise SourceError(f"Ray gave up a task ({name}): {MEMORY}") from None

    def _cancel(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.cancel(handle, force=True)


def run_task(driver: Driver, setup: tuple[Any], work: bytes) -> Any:
    """Run a pickled call and item in a process of Ray's.

    Args:
        setup: Ray's reference to the pickled setup, which is run once in each process.
    """
    folder, path, versions = driver
    for name, ours in software().items():
        if name != "python" and ours != versions[name]:
            raise MismatchError(
                f"a Ray node has {name} {ours}, the driver {versions[name]}: install the same one, "
                "as the output's bytes may depend on it"
            )
    sys.path += [entry for entry in path if entry not in sys.path]
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(folder)  # relative paths start where the driver's do
    try:
        call, item = pickle.loads(work)
        return call(item, _made(*setup))
    finally:
        os.chdir(before)


@functools.lru_cache(maxsize=1)
def _made(setup: Any) -> Any:
    import ray

    return pickle.loads(ray.get(setup))()


@contextlib.contextmanager
def _ray_session(workers: int | None) -> Iterator[Any]:
    """Ray: in this process's own session, on the cluster that RAY_ADDRESS names, or a new one here,
    which ends with the block.

    Args:
        workers: CPUs of a new one; all that this process may use by default.

    Raises:
        SourceError: no cluster of this Ray and Python is there, or Ray cannot be started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task that runs out of memory is repeated for ever unless the driver's Ray is told otherwise.
    os.environ.setdefault("RAY_task_oom_retries", str(_RETRIES))
    with warnings.catch_warnings(action="ignore"):
        import ray

        if is_ours := not ray.is_initialized():
            _connect(ray, workers)
            # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
            ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        if is_ours:
            with warnings.catch_warnings(action="ignore"):
                ray.shutdown()
            ray._private.worker._worker_logs_enabled = True


def _connect(ray: Any, workers: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS") or "local"
    own = {"num_cpus": num_workers(workers), "include_dashboard": False}
    options = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        ray.init(address=address, **options, **(own if address == "local" else {}))
    except Exception as error:
        with contextlib.suppress(Exception):
            ray.shutdown()
        reason = " ".join(str(error).split())[:300]
        raise SourceError(
            f"Ray does not start at RAY_ADDRESS {address} ({reason}): start a cluster of the same "
            "Ray and Python there, unset RAY_ADDRESS, or use --engine local"
        ) from None
