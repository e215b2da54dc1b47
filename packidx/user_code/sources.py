"""The source of a user's code: of its module, and of all modules of the user's that it imports."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from types import ModuleType

from packidx.digests import digest


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
    except (SyntaxError, ValueError):  # it is no Python, but compiled
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
    """What an import of a module would load; None where there is no such module."""
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
    """Whether a module is Python's own, packidx's, or one that an installer has put there."""
    own = top in sys.stdlib_module_names or top in ("packidx", "packidx_cli")
    spec = None if own else _spec(top)
    if spec is None:
        return True
    place = next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    return any(name.endswith(".dist-info") for name in os.listdir(os.path.dirname(place) or "."))
