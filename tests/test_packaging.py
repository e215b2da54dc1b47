"""A wheel has all that a clone has."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

REPO = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())


def test_every_folder_of_code_is_installed() -> None:
    config = PROJECT["tool"]["setuptools"]
    folders = {
        str(file.parent.relative_to(REPO)).replace("/", ".")
        for top in ("packidx", "cli")
        for file in (REPO / top).rglob("__init__.py")
    }
    named = {re.sub("^cli", "packidx_cli", one) for one in folders}
    assert {*config["packages"]} == named
    bare = {file.parent for top in ("packidx", "cli") for file in (REPO / top).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in bare)


def test_every_file_is_code_of_the_oldest_python_that_is_declared() -> None:
    oldest = _declared()[0]
    for folder in ("packidx", "cli", "examples", "bench", "tools"):
        for file in (REPO / folder).rglob("*.py"):
            ast.parse(file.read_text(), str(file), feature_version=oldest)


def test_the_declared_pythons_are_those_that_pip_lets_in_and_lint_looks_at() -> None:
    pythons = _declared()
    assert pythons == [(3, minor) for minor in range(11, pythons[-1][1] + 1)]
    assert PROJECT["project"]["requires-python"] == f">={_dotted(pythons[0])}"
    assert PROJECT["tool"]["mypy"]["python_version"] == _dotted(pythons[0])
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{_dotted(pythons[0]).replace('.', '')}"
    assert f"mypy --python-version {_dotted(pythons[-1])}\n" in (REPO / "Makefile").read_text()


def _declared() -> list[tuple[int, int]]:
    """The Pythons that the classifiers name."""
    named = [one.rpartition(" ")[2].split(".") for one in PROJECT["project"]["classifiers"]]
    return [(int(one[0]), int(one[1])) for one in named if one[0] == "3" and len(one) == 2]


def _dotted(python: tuple[int, int]) -> str:
    return ".".join(map(str, python))


def test_what_came_out_beside_each_trainer_is_in_the_ranges_of_today() -> None:
    """Else docs/trainers.md is of other ranges: run `make trainers`."""
    project = PROJECT["project"]
    extras = [project["optional-dependencies"][one] for one in ("torch", "s3")]
    asked = map(Requirement, [*project["dependencies"], *itertools.chain(*extras)])
    ranges = {one.name: one.specifier for one in asked}
    page = (REPO / "docs" / "trainers.md").read_text().partition("What came out")[2]
    header, _, *rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "|" in line]
    assert len(rows) >= 10 and header[:2] == ["trainer", "resolves"]
    for trainer, resolves, *versions in rows:
        assert resolves == "yes", trainer
        for package, version in zip(header[2:], versions, strict=True):
            assert version in ranges[package], f"{trainer}: {package} {version}"
