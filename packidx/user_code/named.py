"""Objects of the user's own code by name: ``module:NAME``, or ``module:NAME()`` to call it."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Any

from packidx.errors import OptionError

_SPEC = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(\(\))?")


def load_named(spec: str, option: str) -> Any:
    """The object that `spec` names.

    The current directory is importable, as with ``python -m``.

    Args:
        spec: ``module:NAME``, the attribute itself; ``module:NAME()``, what it returns when called
            without arguments. NAME may have dots.
        option: what the user gave it as, for the error.

    Raises:
        OptionError: no such module or attribute, or importing or calling it failed.
    """
    parts = _SPEC.fullmatch(spec)
    if parts is None:
        raise OptionError(f"{option} {spec}: write module:NAME, or module:NAME() for a factory")
    module, path, called = parts.groups()
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
        value = value() if called else value
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise OptionError(
            f"{option} {spec} cannot be loaded ({reason}): check the name, and run packidx where "
            "the module can be imported"
        ) from error
    if isinstance(value, type):
        raise OptionError(f"{option} {spec} is a class: write {spec}() to make one of it")
    if not callable(value):
        raise OptionError(f"{option} {spec} is {type(value).__name__}, which cannot be called")
    return value


def name_of(value: Any) -> str:
    """``module:NAME`` of a callable, or of its type where it has no name of its own."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def fingerprint_of(value: Any) -> str | None:
    """What the object says its fingerprint is: its ``fingerprint()`` or ``fingerprint``.

    Raises:
        OptionError: it is no text.
    """
    stated = getattr(value, "fingerprint", None)
    stated = stated() if callable(stated) else stated
    if stated is not None and not isinstance(stated, str):
        raise OptionError(
            f"the fingerprint of {name_of(value)} is {type(stated).__name__}: let it be text"
        )
    return stated
