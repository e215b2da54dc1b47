"""Workers: how many processes do the work, and where. The caller's word alone decides."""

from __future__ import annotations

import importlib.util

from packidx.errors import MissingExtraError, OptionError
from packidx.run.workers import Workers, num_workers

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""


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
    from packidx.run.cluster import RayWorkers

    return RayWorkers(workers)
