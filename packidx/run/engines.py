"""Who runs the tasks: processes of this machine, or Ray, by the caller's word alone."""

from __future__ import annotations

import importlib.util

from packidx.errors import MissingExtraError, OptionError

ENGINES = ("local", "ray")
"""Who runs the tasks; the bytes are the same."""


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
