"""README and FORMAT against the program: every block is run, every column is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absent import WITHOUT_TRANSFORMERS

from packidx.format import schema

REPO = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [
        text for kind, text in BLOCK.findall((REPO / "README.md").read_text()) if kind == language
    ]


@pytest.fixture
def workplace(corpus: Path, processors: Path, tmp_path: Path) -> Path:
    """A folder that looks as `make plan` leaves it, but for lengths and index."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus").symlink_to(corpus)
    (tmp_path / "data" / "processors").symlink_to(processors)
    return tmp_path


@pytest.mark.slow
def test_every_block_runs_as_it_stands(workplace: Path) -> None:
    shell = [
        line for text in blocks("sh") for line in text.splitlines() if line.startswith("packidx")
    ]
    assert {line.split()[1] for line in shell} == {
        "estimate",
        "plan",
        "stats",
        "log",
        "sql",
        "verify",
        "precompute",
        "export",
        "doctor",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in shell:
        done = subprocess.run(
            command, shell=True, cwd=workplace, env=os.environ | {"PATH": path},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout
    scripts = blocks("python")
    assert len(scripts) == 2
    for script in scripts:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=workplace, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"


@pytest.mark.slow
def test_the_example_output_is_what_the_example_gives(workplace: Path) -> None:
    text = (REPO / "README.md").read_text()
    shown = re.search(r"What `make plan` ends with:\n\n((?:    .*\n)+)", text)
    assert shown
    program = f"{WITHOUT_TRANSFORMERS}\nfrom packidx_cli.main import run\nrun()"  # as `make plan`
    estimate, plan = blocks("sh")[1].splitlines()
    for command in (estimate, plan):
        done = subprocess.run(
            [sys.executable, "-c", program, *command.split()[1:]],
            cwd=workplace, capture_output=True, text=True, check=True,
        )  # fmt: skip
    for line in shown.group(1).splitlines():
        assert line.strip() in done.stdout.splitlines()


def test_format_names_every_column() -> None:
    text = (REPO / "FORMAT.md").read_text()
    for table in (schema.ALL_LENGTHS, schema.PACKS, schema.SAMPLES, schema.DROPPED):
        for name in table.names:
            assert f"`{name}`" in text, f"FORMAT.md says nothing of {name}"
    for field in schema.MEDIA.value_type:
        assert f"`{field.name}`" in text


def test_make_targets_are_documented() -> None:
    makefile = (REPO / "Makefile").read_text()
    shown = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True)
    for target in ("help", "plan", "test", "check", "bench", "clean"):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)
        assert re.search(rf"^{target}\b", shown.stdout, re.MULTILINE)
