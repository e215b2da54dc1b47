"""Environments that hold some packages and nothing else, made of links to the installed ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

REPO = Path(__file__).parents[2]

PLANNER = frozenset({"polars", "duckdb", "click", "cloup", "rich", "typer"})
"""What planning needs and reading does not; typer, an optional part of transformers, brings two."""

NETWORK = frozenset({"fsspec", "ruamel.yaml", "huggingface-hub", "braceexpand"})
"""What further sources and processors given by name need."""


class Environment:
    """Programs run in it find packidx, Python's own modules, and what is linked in `folder`."""

    def __init__(self, folder: Path, names: Iterable[str], without: frozenset[str]) -> None:
        """
        Args:
            folder: where the links go.
            names: distributions; what they require comes along.
            without: distributions that do not, whoever requires them.
        """
        folder.mkdir(parents=True)
        self.folder = folder
        for one in _with_requirements(names, without):
            for entry in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
                if not (folder / entry).exists():
                    (folder / entry).symlink_to(str(one.locate_file(entry)))
        (folder / "packidx").symlink_to(REPO / "packidx")
        (folder / "packidx_cli").symlink_to(REPO / "cli")

    def run(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """``python ARGS``, without any folder of site-packages."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-S", "-W", "ignore", *args],
            capture_output=True,
            text=True,
            env={**environment, **variables},
            timeout=300,
        )


def _with_requirements(names: Iterable[str], without: frozenset[str]) -> Iterator[Distribution]:
    seen = set(without)
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of another system or Python
            continue
        yield found
        required = [one for one in found.requires or [] if "extra ==" not in one]
        todo += [_normal(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in required]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
