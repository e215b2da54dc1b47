"""A wheel has all that a clone has."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPO = Path(__file__).parent.parent


def test_every_folder_of_code_is_installed() -> None:
    config = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        str(file.parent.relative_to(REPO)).replace("/", ".")
        for file in (REPO / "packidx").rglob("__init__.py")
    }
    assert {*config["packages"]} == {*folders, "packidx_cli"}
    bare = {file.parent for file in (REPO / "packidx").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in bare)
