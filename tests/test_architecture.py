"""How the code is laid out: no circles, nothing private shared; the layers are pyproject.toml's."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

REPO = Path(__file__).parent.parent
ROOTS = {"packidx": "packidx", "cli": "packidx_cli"}


@cache
def modules() -> dict[str, Path]:
    """All modules by their dotted names."""
    paths = {}
    for folder, package in ROOTS.items():
        for path in sorted((REPO / folder).rglob("*.py")):
            parts = [package, *path.relative_to(REPO / folder).with_suffix("").parts]
            paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


@cache
def layers() -> dict[str, int]:
    """Every part of the code by its name, and how many layers stand above its own."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {part.strip(): above for above, line in enumerate(lines) for part in line.split("|")}


def part_of(module: str) -> str:
    """The part of the code that a module belongs to; `packidx` itself belongs to none."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "packidx" else 1])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below `node` but those for type checkers, bodies of functions included."""
    for child in ast.iter_child_nodes(node):
        if not is_type_checking(child):
            yield child
            yield from executed(child)


def source_of(node: ast.ImportFrom, name: str) -> str:
    """What a module imports from, in full."""
    if not node.level:
        return node.module or ""
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def named(nodes: Iterable[ast.AST], name: str = "") -> set[str]:
    """Our modules that a module's statements import, or import names of."""
    known = modules()
    ours: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            ours |= {alias.name for alias in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom):
            source = source_of(node, name)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                ours |= {inner if inner in known else source} & known.keys()
    return ours


def imported(name: str) -> set[str]:
    """Our modules that a module imports, at once or late, with the packages that they are in."""
    ours = named(executed(ast.parse(modules()[name].read_text())), name)
    for module in list(ours):  # Python runs the packages above a module first
        parts = module.split(".")
        above = {".".join(parts[:n]) for n in range(1, len(parts))}
        ours |= {package for package in above if not f"{name}.".startswith(f"{package}.")}
    return ours - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in turn; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_one_that_imports_it() -> None:
    graph = {name: imported(name) for name in modules()}
    assert not circle(graph)
    assert circle({"a": {"b"}, "b": {"a"}})


def test_no_module_imports_what_another_keeps_to_itself() -> None:
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and source_of(node, name) in modules():
                private = [alias.name for alias in node.names if re.match("_[^_]", alias.name)]
                assert not private, f"{name} imports {private[0]} of {source_of(node, name)}"


def test_every_part_of_the_code_has_its_layer() -> None:
    parts = {part_of(module) for module in modules()} - {"packidx"}
    assert layers().keys() == parts
