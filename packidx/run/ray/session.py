"""The session of Ray that tasks run in: the process's own, joined, or started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from packidx.errors import MismatchError, SourceError
from packidx.run.limits import num_workers

RETRIES = 3  # of a task whose process or node died


@contextlib.contextmanager
def session(workers: int | None) -> Iterator[Any]:
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
            handler = _sigterm()
            _connect(ray, workers)
            # Ray tells of every dead worker on stdout, which is for results, whatever is asked.
            ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        if is_ours:
            with _quiet():
                ray.shutdown()
            _sigterm(handler)
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
    defaults = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(RETRIES)}
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
