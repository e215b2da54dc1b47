"""That the lowest releases which pyproject.toml admits are the ones that are tested."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from floors import floors  # noqa: E402


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


@pytest.mark.parametrize("pinned", floors(HERE.parent.parent / "pyproject.toml"))
def test_the_floor_is_the_one_imported(pinned: str) -> None:
    name, floor = pinned.split("==")
    found, wanted = _numbers(version(name)), _numbers(floor)
    assert found == wanted + [0] * (len(found) - len(wanted))
