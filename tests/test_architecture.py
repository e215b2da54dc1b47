"""How the code is laid out: no circles, nothing twice; the layers are pyproject.toml's."""

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
ALIKE = 6
"""Lines in a row that may not stand in two places."""
ABOUT_ALL = {"e2e", "energon", "examples", "helpers", "versions"}
"""Folders of tests that are about no one part of the code, and may import any."""
BESIDES = {
    # Families are held to transformers' own processors, which `encode` loads.
    "tests/processor/families/": "packidx.encode",
}
"""Tests, and what they may import besides what their layer may."""


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
    assert len(graph) > 100 and sum(map(len, graph.values())) > 300
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
                private = [alias.name for alias in node.names if re.match("_[^_]", alias.name)]
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
    assert (pools, ray) == ({"packidx/run/engines.py"}, {"packidx/run/ray"})


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
    parts = {part_of(module) for module in modules()} - {"packidx"}
    assert layers().keys() == parts


def may_import(part: str, module: str) -> bool:
    """Whether tests of a part may: what is not below it, by what users import alone."""
    theirs = part_of(module)
    if theirs == part or module in ("packidx", "packidx_cli.main"):
        return True
    is_face = theirs != "packidx_cli" and modules()[module].name == "__init__.py"
    return is_face or layers()[theirs] > layers()[part]


def imported_above(folder: str, text: str) -> set[str]:
    """Modules that a test in a folder of `tests` imports though that folder's part may not."""
    part = "packidx_cli" if folder == "cli" else f"packidx.{folder}"
    assert part in layers(), f"tests/{folder} is named for no part of the code: see ABOUT_ALL"
    used = named(ast.walk(ast.parse(text)))
    return {module for module in used if not may_import(part, module)}


def test_tests_import_what_the_part_that_they_test_may() -> None:
    faces = "import packidx.index.reader, packidx.plan.api\nfrom packidx.torch import collate"
    assert not imported_above("plan", faces)
    assert imported_above("plan", "from packidx.torch import ranks") == {"packidx.torch.ranks"}
    assert imported_above("plan", "import packidx_cli.options") == {"packidx_cli.options"}
    needed = set()
    for path in sorted((REPO / "tests").glob("*/**/*.py")):
        place = path.relative_to(REPO).as_posix()
        folder = place.split("/")[1]
        above = set() if folder in ABOUT_ALL else imported_above(folder, path.read_text())
        for start, package in BESIDES.items():
            excused = {module for module in above if f"{module}.".startswith(f"{package}.")}
            if excused and place.startswith(start):
                needed.add(start)
                above -= excused
        assert not above, (
            f"{place} imports {', '.join(sorted(above))}, above or beside what it tests: "
            "move the test to tests/e2e, or to the folder that it is about"
        )
    assert needed == BESIDES.keys()
