"""How the code is laid out: no circles, no crowd, nothing long; the layers are pyproject.toml's."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

REPO = Path(__file__).parent.parent
ROOTS = {"packidx": "packidx", "cli": "packidx_cli"}
MAX_LINES = 300
MAX_FILES = 14
MANY_ALIKE = {"packidx/processor/families"}
"""Folders with a file for each of many things of one kind."""
TOO_LONG: set[str] = set()
"""Files that wait to be split."""
ALIKE = 6
"""Lines in a row that may not stand in two places."""


@cache
def modules() -> dict[str, Path]:
    """All modules by their dotted names."""
    found = {}
    for folder, package in ROOTS.items():
        for path in sorted((REPO / folder).rglob("*.py")):
            parts = [package, *path.relative_to(REPO / folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


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
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def imported(name: str) -> set[str]:
    """Our modules that a module imports, at once or late, with the packages that they are in."""
    known = modules()
    found = set()
    for node in executed(ast.parse(known[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom):
            source = source_of(node, name)
            for one in node.names:
                inner = f"{source}.{one.name}"
                found |= {inner if inner in known else source} & known.keys()
    for one in list(found):  # Python runs the packages above a module first
        parts = one.split(".")
        above = {".".join(parts[:n]) for n in range(1, len(parts))}
        found |= {package for package in above if not f"{name}.".startswith(f"{package}.")}
    return found - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in turn; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_one_that_imports_it() -> None:
    graph = {name: imported(name) for name in modules()}
    assert len(graph) > 300 and sum(map(len, graph.values())) > 1000
    assert not circle(graph)


def test_late_imports_count_and_those_for_type_checkers_do_not() -> None:
    late = "def f():\n    import packidx.errors"
    checked = "if TYPE_CHECKING:\n    import packidx.errors"
    for text, number in ((late, 1), (checked, 0)):
        nodes = executed(ast.parse(text))
        assert sum(isinstance(node, ast.Import) for node in nodes) == number


def test_no_module_imports_what_another_keeps_to_itself() -> None:
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and source_of(node, name) in modules():
                private = [one.name for one in node.names if re.match("_[^_]", one.name)]
                assert not private, f"{name} imports {private[0]} of {source_of(node, name)}"


def test_processes_are_pooled_in_one_place_and_ray_is_in_one_folder() -> None:
    pools, ray = set(), set()
    for path in modules().values():
        name = str(path.relative_to(REPO))
        for node in ast.walk(ast.parse(path.read_text())):
            names = {alias.name for alias in getattr(node, "names", ()) if hasattr(alias, "name")}
            source = getattr(node, "module", None) or ""
            pools |= {name for _ in names & {"ProcessPoolExecutor", "Pool", "get_context"}}
            if "ray" in {source.partition(".")[0], *names} and "packidx" not in source:
                ray.add(str(path.parent.relative_to(REPO)))
    assert (pools, ray) == ({"packidx/run/local.py"}, {"packidx/run/ray"})


def test_no_folder_has_more_files_than_one_sees_at_a_glance() -> None:
    counts = Counter(str(path.parent.relative_to(REPO)) for path in modules().values())
    crowded = {folder for folder, number in counts.items() if number > MAX_FILES}
    assert crowded <= MANY_ALIKE, crowded - MANY_ALIKE


def test_no_file_is_long() -> None:
    paths = {str(path.relative_to(REPO)): path for path in modules().values()}
    long = {name for name, path in paths.items() if path.read_text().count("\n") > MAX_LINES}
    assert long == TOO_LONG, f"too long: {long - TOO_LONG}, no longer: {TOO_LONG - long}"


def logic(tree: ast.Module, text: str) -> list[tuple[int, str]]:
    """Lines of a module with their numbers, but for imports, signatures, comments, docstrings."""
    out: set[int] = set()
    for node in ast.walk(tree):
        first = last = 0
        if isinstance(node, ast.Import | ast.ImportFrom):
            first, last = node.lineno, node.end_lineno or 0
        elif isinstance(node, ast.FunctionDef):
            first, last = node.lineno, node.body[0].lineno - 1
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            first, last = node.lineno, node.end_lineno or 0
        out |= set(range(first, last + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(n, line) for n, line in lines if n not in out and line and not line.startswith("#")]


def alike(texts: dict[str, str]) -> list[str]:
    """Places whose next lines stand in an earlier place, too."""
    seen: dict[tuple[str, ...], str] = {}
    again = []
    for name, text in texts.items():
        lines = logic(ast.parse(text), text)
        for at in range(len(lines) - ALIKE + 1):
            run = tuple(line for _, line in lines[at : at + ALIKE])
            here = f"{name}:{lines[at][0]}"
            if len(set(run)) > 1 and (there := seen.setdefault(run, here)) != here:
                again.append(f"{there} and {here}")
    return again


def test_no_six_lines_stand_in_two_places() -> None:
    work = "\n".join(f"    step_{number}()" for number in range(ALIKE))
    first, second = f"def a():\n{work}", f"def b():\n    before()\n{work}"
    assert alike({"a": first, "b": second}) == ["a:2 and b:3"]
    assert not alike({"a": first, "b": "import a\n" * 9})
    texts = {str(path.relative_to(REPO)): path.read_text() for path in modules().values()}
    assert not alike(texts)


def test_keys_of_manifests_are_known_in_format_alone() -> None:
    keyed = re.compile(r"manifest\[[\"']")
    others = [path for name, path in modules().items() if not name.startswith("packidx.format")]
    assert not [path for path in others if keyed.search(path.read_text())]


def test_every_part_of_the_code_has_its_layer() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    named = [part.strip() for layer in layers for part in layer.split("|")]
    parts = {".".join(name.split(".")[:2]) for name in modules() if name.startswith("packidx.")}
    assert sorted(named) == sorted({*parts, "packidx_cli"})
