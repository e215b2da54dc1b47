"""Objects of the user's own code by name: ``module:NAME``, or ``module:NAME()`` to call it."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.digests import canonical_json, digest
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
    """Return what the object says its fingerprint is: its ``fingerprint()`` or ``fingerprint``.

    Raises:
        OptionError: it is not text.
    """
    stated = getattr(value, "fingerprint", None)
    stated = stated() if callable(stated) else stated
    if stated is not None and not isinstance(stated, str):
        raise OptionError(
            f"the fingerprint of {name_of(value)} is {type(stated).__name__}: let it be text"
        )
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
    its source, its module's, and that of the user's modules which this imports."""

    @classmethod
    def load(cls, function: str | Function, seed: int = 0) -> Transform:
        """The transform of a callable, or of ``module:NAME``; `seed` is any integer of 64 bits.

        Raises:
            OptionError: it cannot be loaded, or has neither source nor fingerprint.
        """
        if isinstance(function, str):
            name, loaded = function, load_named(function, "--transform")
        else:
            name, loaded = name_of(function), function
        if not -(1 << 63) <= seed < 1 << 63:
            raise OptionError(f"seed is {seed}: it must fit 64 bits")
        return cls(name, loaded, seed, fingerprint_of(loaded) or _source_digest(loaded))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
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
            detail = f"{self.name} returned {type(changed).__name__}, not a record"
            raise BadRecord("transform_failed", detail)
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
            raise MismatchError(
                f"the lengths of {where} were counted without a transform: leave it out, or "
                "estimate with --transform and plan again"
            )
        return None
    if given is None:
        raise MismatchError(
            f"the lengths of {where} were counted with the transform {planned.name} (seed "
            f"{planned.seed}): give it as transform= (packidx verify: --transform)"
        )
    transform = Transform.load(given, planned.seed)
    if transform.fingerprint != planned.fingerprint:
        raise MismatchError(
            f"the transform {transform.name} has fingerprint {transform.fingerprint}, the lengths "
            f"of {where} were counted with {planned.fingerprint} ({planned.name}): use that "
            "one, or estimate and plan again"
        )
    return transform


def _source_digest(function: Any) -> str:
    """SHA-256 of the source of a function, of a partial's function and arguments, or of a class."""
    own = f"{name_of(function)}: give it an attribute `fingerprint`, text that changes with it"
    if isinstance(function, functools.partial):
        try:
            arguments = canonical_json([function.args, function.keywords])
        except TypeError as error:
            raise OptionError(f"{error}, an argument of {own}") from None
        return digest(_source_digest(function.func).encode(), arguments)
    unwrapped = inspect.unwrap(function)
    if getattr(unwrapped, "__closure__", None):
        raise OptionError(f"a function that closes over variables hides what it does, {own}")
    owner = getattr(unwrapped, "__self__", unwrapped)  # of a method, the object
    if not inspect.isroutine(owner) and getattr(owner, "__dict__", None):
        raise OptionError(f"an object with a state of its own says nothing of it, {own}")
    code = [unwrapped if inspect.isroutine(unwrapped) else type(unwrapped)]
    code += [] if owner is unwrapped else [type(owner)]
    try:
        sources = [textwrap.dedent(inspect.getsource(part)).encode() for part in code]
        modules = [sources_digest(sys.modules[part.__module__]).encode() for part in code]
        return digest(*sources, *modules)
    except (OSError, TypeError, KeyError):
        raise OptionError(f"there is no source of the transform {own}") from None


def sources_digest(module: ModuleType) -> str:
    """SHA-256 of the source of a module and of what it imports, as its import statements say and
    wherever these stand; not of installed packages but its own, and nothing is executed.

    Raises:
        OSError: the module's source is in no file.
    """
    path = getattr(module, "__file__", None)
    if path is None:
        raise OSError(f"{module.__name__} has no file")
    with open(path, "rb") as file:
        own = file.read()
    found: dict[str, bytes] = {}
    waiting = list(_imported(own, module.__package__ or ""))
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name], top = b"", name.partition(".")[0]
        mine = top == module.__name__.partition(".")[0] or not _is_installed(top)
        spec = _spec(name) if mine else None
        if spec is not None and spec.has_location and spec.origin is not None:
            with open(spec.origin, "rb") as file:
                found[name] = file.read()
            waiting += _imported(found[name], spec.parent or "")
    parts = [(name.encode(), found[name]) for name in sorted(found) if found[name]]
    return digest(own, *(part for pair in parts for part in pair))


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Names of modules, or of what may be one, that a source imports, and of what they are in."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # it is not Python, but compiled
        return
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            try:
                start = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # from beyond the topmost package
                continue
            names = [start, *(f"{start}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def _spec(name: str) -> ModuleSpec | None:
    """Return what an import of a module would load; None where there is no such module."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent, _, _ = name.rpartition(".")
    above = _spec(parent) if parent else None
    if parent and (above is None or above.submodule_search_locations is None):
        return None
    path = None if above is None else list(above.submodule_search_locations or ())
    return PathFinder.find_spec(name, path)


def _is_installed(top: str) -> bool:
    """Return whether a module is Python's own, packidx's, or one that an installer has put
    there."""
    own = top in sys.stdlib_module_names or top in ("packidx", "packidx_cli")
    spec = None if own else _spec(top)
    if spec is None:
        return True
    place = next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    return any(name.endswith(".dist-info") for name in os.listdir(os.path.dirname(place) or "."))
