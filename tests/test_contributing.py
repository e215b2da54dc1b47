"""CONTRIBUTING.md names files and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", TEXT)
PATHS = [
    word for word in QUOTED if re.fullmatch(r"[\w.]+(/[\w.]+)+/?|\w+\.(md|toml|py)|\w+/", word)
]


def test_every_path_exists() -> None:
    assert len(PATHS) > 50
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", TEXT)) | {"test-lowest"}
    assert len(named) > 6 and named <= targets


def test_every_name_in_code_is_in_code() -> None:
    """`FAMILIES`, `count_images`, `_BY_ITEM` and the like stand somewhere in the sources."""
    names = {word for word in QUOTED if re.fullmatch(r"_?[A-Za-z]+(_[A-Za-z]+)*", word)}
    folders = ("packidx", "cli", "tests")
    sources = "\n".join(file.read_text() for one in folders for file in (ROOT / one).rglob("*.py"))
    sources += (ROOT / "pyproject.toml").read_text() + (ROOT / "FORMAT.md").read_text()
    missing = [name for name in names if not re.search(rf"\b{name}\b", sources)]
    assert len(names) > 25 and missing == []


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120
