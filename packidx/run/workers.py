"""Run calls in worker processes: of this machine by loky, or Ray's.

A few tasks are in flight at a time, so that the caller's memory does not grow with their number.
What a task does may be done twice, even by two processes at once: Ray repeats what a killed process
or node had begun (https://docs.ray.io/en/latest/ray-core/fault-tolerance.html).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import math
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any, Protocol, Self

import cloudpickle
from loky import ProcessPoolExecutor, cpu_count, process_executor

from packidx.errors import MismatchError, MissingExtraError, OptionError, SourceError
from packidx.software import list_versions

Call = Callable[[Any, Any], Any]
"""``call(item, made)``: what is done with an item."""
Setup = Callable[[], Any]
"""Makes what the calls need, once in each process."""

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""
_RETRIES = 3  # of a task whose process or node died
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
        ``'files'``, which are reported by several threads."""


def report_nothing(doing: str, done: int, total: int) -> None:
    """Report nothing."""


def num_workers(asked: int | None) -> int:
    """Return as many as were asked for, or as many as there are CPUs for this process: by its
    affinity, and its control group's quota.

    Raises:
        OptionError: fewer than one were asked for.
    """
    if asked is not None and asked < 1:
        raise OptionError(f"workers is {asked}: give at least 1")
    return asked or int(cpu_count())


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


class Workers:
    """Processes of this machine, so many at most; `RayWorkers` are those of Ray."""

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
            self._start_processes(setup, len(items))
            pending = deque[Any]()
            try:
                for item in items:
                    if len(pending) >= self._num_ahead():
                        yield self._wait_result(pending.popleft())
                    pending.append(self._submit_call(call, item))
                while pending:
                    yield self._wait_result(pending.popleft())
            except process_executor.BrokenProcessPool:
                raise SourceError(f"a worker process died: {MEMORY}") from None
            finally:
                for handle in pending:  # the caller stopped, or an item failed
                    self._cancel_call(handle)

    def takes(self, num_items: int) -> bool:
        """Return True if so many items are for them, rather than for the calling process."""
        return min(self._most, num_items) > 1

    def _start_processes(self, setup: Setup, num_items: int) -> None:
        """Start the processes, unless they run with this setup already."""
        if self._executor is not None and setup == self._setup:
            return
        self.close()
        arguments = pickle_setup(setup), os.getpid()
        self._setup, self._processes = setup, min(self._most, num_items)
        self._executor = ProcessPoolExecutor(
            self._processes, initializer=_start_worker_process, initargs=arguments
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

    def _num_ahead(self) -> int:
        return AHEAD * self._processes

    def _submit_call(self, call: Call, item: Any) -> Any:
        """Return a handle of a call in another process."""
        return self._executor.submit(_run_call, call, item)

    def _wait_result(self, handle: Any) -> Any:
        return handle.result()

    def _cancel_call(self, handle: Any) -> None:
        handle.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pickle_setup(setup: Setup) -> bytes:
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


def _start_worker_process(setup: bytes, parent: int) -> None:
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


def _run_call(call: Call, item: Any) -> Any:
    if _failure is not None:
        raise _failure
    return call(item, _made)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a killed one cannot end its workers."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


# -- Ray -------------------------------------------------------------------------------------------

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

    def _start_processes(self, setup: Setup, num_items: int) -> None:
        if self._ray is None:
            self._ray = self._session.enter_context(_ray_session(self._workers))
        if self._task is None or setup != self._setup:
            task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(run_task)
            driver: Driver = os.getcwd(), list(sys.path), list_versions()
            # In a tuple, as Ray replaces an argument that is a reference by its value.
            self._task = functools.partial(
                task.remote, driver, (self._ray.put(pickle_setup(setup)),)
            )
            self._setup = setup

    def close(self) -> None:
        """Leave Ray, and end it where it was started here."""
        self._session.close()
        self._ray = self._task = None

    def _num_ahead(self) -> int:
        cpus = int(self._ray.cluster_resources().get("CPU", 0))  # nodes may come and go
        return self._workers or AHEAD * max(1, cpus)

    def _submit_call(self, call: Call, item: Any) -> Any:
        return self._task(self._ray.cloudpickle.dumps((call, item)))

    def _wait_result(self, handle: Any) -> Any:
        from ray.exceptions import RayError, RaySystemError, RayTaskError

        try:
            return self._ray.get(handle)
        except RayTaskError as error:
            if isinstance(error.cause, Exception) and not isinstance(error.cause, RaySystemError):
                raise error.cause from None
            reason = (str(error).strip().splitlines() or [""])[-1][:300]  # it was not begun
            said = f"a Ray node cannot run packidx ({reason}): install packidx "
            raise SourceError(f"{said}{list_versions()['packidx']} there, too") from None
        except RayError as error:
            name = type(error).__name__
            raise SourceError(f"Ray gave up a task ({name}): {MEMORY}") from None

    def _cancel_call(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.cancel(handle, force=True)


def run_task(driver: Driver, setup: tuple[Any], work: bytes) -> Any:
    """Run a pickled call and item in a process of Ray's.

    Args:
        setup: Ray's reference to the pickled setup, which is run once in each process.
    """
    folder, path, versions = driver
    for name, ours in list_versions().items():
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
        return call(item, _made_by_ray(*setup))
    finally:
        os.chdir(before)


@functools.lru_cache(maxsize=1)
def _made_by_ray(setup: Any) -> Any:
    import ray

    return pickle.loads(ray.get(setup))()


@contextlib.contextmanager
def _ray_session(workers: int | None) -> Iterator[Any]:
    """Enter Ray: in this process's own session, on the cluster that RAY_ADDRESS names, or a new one
    here of so many CPUs, which ends with the block. Raise a SourceError if it cannot be started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task that runs out of memory is repeated for ever unless the driver's Ray is set otherwise.
    os.environ.setdefault("RAY_task_oom_retries", str(_RETRIES))
    with warnings.catch_warnings(action="ignore"):
        import ray

        if is_ours := not ray.is_initialized():
            _connect_ray(ray, workers)
            # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
            ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        if is_ours:
            with warnings.catch_warnings(action="ignore"):
                ray.shutdown()
            ray._private.worker._worker_logs_enabled = True


def _connect_ray(ray: Any, workers: int | None) -> None:
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
