"""`packidx --version`, and what `--verbose` adds for a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pytest
from packidx_cli.main import main

import packidx


def test_the_version_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"packidx {packidx.__version__}\n"


@pytest.mark.parametrize("order", [["--version", "--verbose"], ["--verbose", "--version"]])
def test_the_environment(order: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(order) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert first == f"packidx {packidx.__version__}"
    assert shown["python"].startswith(platform.python_version())
    assert shown["pyarrow"] == version("pyarrow") and shown["flash-attn"] == "not installed"
    assert {"folder", "platform", "cores", "GPU", "transformers"} <= shown.keys()
    assert not {"packidx", "pytest", "ruff"} & shown.keys()
