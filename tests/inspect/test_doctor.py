"""`packidx doctor`: versions, ranges, extras, and what torch sees."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packidx_cli.main import main

from packidx.inspect import doctor

REPO = Path(__file__).parents[2]


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["doctor", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_versions_are_those_that_are_installed_and_ranges_those_of_the_metadata(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = told(capsys)
    assert (found["ok"], found["failure"], found["problems"]) == (True, None, [])
    environment = found["environment"]
    packages = {one["name"]: one for one in environment["packages"] if one["extra"] is None}
    asked = [Requirement(line) for line in requires("packidx") or [] if "extra ==" not in line]
    ranges = {one.name: one.specifier for one in asked}
    assert set(packages) == set(ranges)
    for name, one in packages.items():
        assert (one["version"], one["inside"]) == (version(name), True)
        assert SpecifierSet(one["wanted"]) == ranges[name]
    seen = environment["torch"]
    assert (seen["version"], seen["cuda"]) == (torch.__version__, torch.version.cuda)
    assert len(seen["devices"]) == torch.cuda.device_count()
    extras = {one["extra"]: one["name"] for one in environment["packages"] if one["extra"]}
    stated = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert set(extras) == set(stated["optional-dependencies"]) - {"dev", "test", "all"}
    assert (extras["ray"], extras["video"]) == ("ray", "av")


def test_what_is_missing_or_of_another_version_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"duckdb": "0.9.1", "click": None, "lmdb": "0.1"}
    monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name, version("click")))
    monkeypatch.setattr(doctor, "_torch", lambda: None)
    found = told(capsys)
    problems = {one["detail"]: one["do"] for one in found["problems"]}
    assert problems["click is not installed, which packidx needs"].startswith('pip install "click>')
    assert any(detail.startswith("duckdb 0.9.1 is here, packidx asks for") for detail in problems)
    assert any(detail.startswith("lmdb 0.1 is here") for detail in problems)
    assert main(["doctor"]) == 1
    assert "NO  lmdb" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 100])
def test_it_is_one_screen(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= (35 if columns == 100 else 50)


def test_where_packs_are_only_read_the_planners_packages_may_be_missing() -> None:
    here = {*doctor.READING, "click"}
    packages = [
        {
            "name": name,
            "extra": None,
            "wanted": "",
            "version": "1.0" if name in here else None,
            "inside": None,
        }
        for name in (*doctor.READING, "polars", "duckdb", "click")
    ]
    environment: dict[str, Any] = {"packages": packages, "torch": {"version": "2.9"}}
    assert not list(doctor.problems(environment))
    assert len(list(doctor.problems(environment | {"torch": None}))) == 2
