"""The same lengths have the same snapshot id on any pyarrow, and each reads the other's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "golden_plans.py"
OVERLAYS = Path(os.environ["PACKIDX_OVERLAYS"])
RELEASES = {"21": "lowest", "26": None}  # None: this environment's

GOLDEN = {
    "split-groups-windows": "376bb2cb3d8d918a1d1c70ef68019258",
    "dropped-limits-mix": "332999fbd49e74e408a96261811725da",
    "lp": "75799dd6f918a13703afa6dae9509088",
    "media-without-any": "a5639caf87f4f09c5b4c8ea0b0f39ac1",
}


def run(release: str, *arguments: str | Path) -> str:
    """What Python prints with this release of pyarrow before the environment's own."""
    folder = RELEASES[release]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if folder is not None:
        environment["PYTHONPATH"] = str(OVERLAYS / folder)
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, str]]]:
    """By release: the folder with its plans, and their ids."""
    plans = {}
    for release in RELEASES:
        folder = tmp_path_factory.mktemp("made") / release
        said = json.loads(run(release, SCRIPT, "make", folder))
        assert said["pyarrow"].split(".")[0] == release
        plans[release] = folder, said["found"]
    return plans


@pytest.mark.parametrize("release", RELEASES)
def test_ids_are_the_same_on_any_pyarrow(made: dict[str, Any], release: str) -> None:
    assert made[release][1] == GOLDEN


def test_an_index_written_by_any_pyarrow_is_read_the_same_by_any(made: dict[str, Any]) -> None:
    folders = [folder for folder, _ in made.values()]
    read = [json.loads(run(release, SCRIPT, "read", *folders)) for release in RELEASES]
    assert [said["pyarrow"].split(".")[0] for said in read] == [*RELEASES]
    plans = read[0]["found"][0]
    assert all(plan == plans for said in read for plan in said["found"])
    assert {name: plan["id"] for name, plan in plans.items()} == GOLDEN
    assert all(plan["failed"] == [] for plan in plans.values())
    # What is compared has pieces of split samples, dropped ones, and media.
    plan = plans["split-groups-windows"]
    assert min(plan["split"], plan["dropped"], plan["media"]) > 0


@pytest.mark.parametrize("release", RELEASES)
def test_the_command_verifies_what_another_pyarrow_wrote(
    made: dict[str, Any], release: str
) -> None:
    for folder, _ in made.values():
        run(release, "-m", "packidx_cli", "verify", folder / "split-groups-windows")
