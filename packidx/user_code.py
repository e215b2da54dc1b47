"""Objects of the user's own code by name: ``module:NAME``, or ``module:NAME()`` to call it."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.digests import digest_parts
from packidx.errors import BadRecord, MismatchError, OptionError, PackidxError
from packidx.hashing import derive_key
from packidx.io.files import refuse_open_files

if TYPE_CHECKING:
    from packidx.format.manifest import Transform as PlannedTransform

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
        cure = "check the name, and run packidx where the module can be imported"
        raise OptionError(f"{option} {spec} cannot be loaded ({reason}): {cure}") from error
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
    """Return what the object says its fingerprint is: its ``fingerprint()`` or ``fingerprint``.
    Raise an OptionError if it is not text."""
    stated = getattr(value, "fingerprint", None)
    stated = stated() if callable(stated) else stated
    if stated is not None and not isinstance(stated, str):
        raise OptionError(f"fingerprint of {name_of(value)} is {type(stated).__name__}, not text")
    return stated


Function = Callable[[dict[str, Any], np.random.Generator], Any]


@dataclass(frozen=True)
class Transform:
    """A declared transform with its seed; pickles if the function does."""

    name: str
    """``module:NAME``."""
    function: Function
    seed: int
    fingerprint: str
    """The function's own ``fingerprint`` (text, or a method that returns it), else the SHA-256 of
    its module's source and its name."""

    @classmethod
    def load(cls, function: str | Function, seed: int = 0) -> Transform:
        """The transform of a callable, or of ``module:NAME``; `seed` is any integer of 64 bits.
        Raise an OptionError if it cannot be loaded, or has neither source nor fingerprint."""
        if isinstance(function, str):
            name, loaded = function, load_named(function, "--transform")
        else:
            name, loaded = name_of(function), function
        if not -(1 << 63) <= seed < 1 << 63:
            raise OptionError(f"seed is {seed}: it must fit 64 bits")
        return cls(name, loaded, seed, fingerprint_of(loaded) or _source_digest(loaded))

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in a manifest."""
        return {"name": self.name, "seed": self.seed, "fingerprint": self.fingerprint}

    def apply(
        self, record: dict[str, Any], sample_id: int, *, epoch: int = 0, copy: int = 0
    ) -> dict[str, Any]:
        """The record that a file's is taken for, as that sample of the plan.

        Raises:
            BadRecord: ``transform_failed``, or what the function raises itself.
        """
        key = derive_key(self.seed, "transform", epoch, sample_id, copy)
        rng = np.random.Generator(np.random.Philox(key=key))
        try:
            changed = self.function(record, rng)
        except PackidxError:
            raise
        except (Exception, SystemExit) as error:
            refuse_open_files(error)
            detail = f"{self.name}: {type(error).__name__}: {error}"
            raise BadRecord("transform_failed", detail) from error
        if not isinstance(changed, Mapping):
            text = f"{self.name} returned {type(changed).__name__}, not a record"
            raise BadRecord("transform_failed", text)
        return dict(changed)


def planned_transform(
    planned: PlannedTransform | None, given: str | Function | None, where: str
) -> Transform | None:
    """Return what the reader was `given` with the plan's seed, if it is the plan's transform.

    `where` is the index, for the error.

    Raises:
        MismatchError: the plan names a transform and this is none or another, or the reverse.
    """
    if planned is None:
        if given is not None:
            text = f"the lengths of {where} were counted without a transform: leave it out"
            raise MismatchError(f"{text}, or estimate with --transform and plan again")
        return None
    if given is None:
        own = f"the transform {planned.name} (seed {planned.seed})"
        text = f"the lengths of {where} were counted with {own}: give it as transform="
        raise MismatchError(f"{text} (packidx verify: --transform)")
    transform = Transform.load(given, planned.seed)
    if transform.fingerprint != planned.fingerprint:
        raise MismatchError(
            f"the transform {transform.name} has fingerprint {transform.fingerprint}, the lengths "
            f"of {where} were counted with {planned.fingerprint} ({planned.name}): use that "
            "one, or estimate and plan again"
        )
    return transform


def _source_digest(function: Any) -> str:
    """Return the SHA-256 of a function's name and of the source of the module that defines it.
    Raise an OptionError if it is no plain function of a module with a file."""
    try:
        if inspect.isfunction(function) and not function.__closure__:
            source = Path(sys.modules[function.__module__].__file__ or "").read_bytes()
            return digest_parts(source, function.__qualname__.encode())
    except (KeyError, AttributeError, OSError):
        pass
    text = f"the transform {name_of(function)} is no function at the top of a module's file"
    raise OptionError(f"{text}: give it an attribute `fingerprint`, text that changes with it")
