"""Help, completion, the version, and how wide lines are."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import cloup
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import cli, main

import packidx


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield " ".join((*path, name)), command


COMMANDS = dict(commands(cli))
GROUPED = {n: command for n, command in COMMANDS.items() if isinstance(command, cloup.Command)}
NEEDED = {  # what else a line needs to be one
    "plan": "lengths/ -o index/ --capacity 8192",
    "estimate": "data.jsonl -o lengths/",
    "precompute": "data.jsonl -o out/ --processor p/",
    "pack": "data.jsonl -o packs/",
    "trace": "index/",
    "sql": "index/",
    "verify": "index/",
}


@pytest.mark.parametrize("name", GROUPED)
def test_every_example_is_one_that_the_command_takes(name: str) -> None:
    command = GROUPED[name]
    for group in command.option_groups:
        example = str(group.help).removeprefix("for example: ")
        words = shlex.split(f"{NEEDED[name]} {example}")
        context = command.make_context(name, words, **cli.context_settings)
        given = {
            option
            for option in group.options
            if context.get_parameter_source(str(option.name))
            is click.core.ParameterSource.COMMANDLINE
        }
        assert given, f"{group.title}: {example} has none of its own options"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_shown_within_100_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    if name in GROUPED:
        for group in GROUPED[name].option_groups:
            assert f"{group.title}:\n" in shown
            assert str(group.help) in " ".join(shown.split())


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    environment = os.environ | {
        "_PACKIDX_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["packidx", *words]),
        "COMP_CWORD": str(len(words)),
    }
    # As the installed program does it: its name decides the variable's.
    code = (
        "import sys; sys.argv[0] = 'packidx'; from packidx_cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], ["plan"]),
        (["plan", "--on-long", "s"], ["split"]),
        (["plan", "--on-l"], ["--on-long"]),
        (["plan", "--strategy", "b"], ["bfd", "balanced"]),
        (["estimate", "--engine", ""], ["local", "ray"]),
        (["export", "w"], ["wds"]),
        (["pack", "--on-long", "tr"], ["truncate"]),
    ],
    ids=" ".join,
)
def test_the_shell_is_offered(words: list[str], offered: list[str]) -> None:
    assert completed(*words) == offered


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


WIDTH = 100


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan whose numbers are wide: half a million tokens, sources with long names, drops."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    number = 3000
    rows = {
        "length": rng.integers(5, 9000, number),
        "source": [f"a_source_with_a_long_name_{n % 4}" for n in range(number)],
        "image_tokens": rng.integers(0, 4, number),
        "num_images": rng.integers(0, 2, number),
        "method": ["heuristic"] * number,
    }
    pq.write_table(pa.table(rows), "l.parquet")
    assert main(["plan", "l.parquet", "-o", "i", "--capacity", "8192", "--max-images", "9"]) == 0
    return "i"


@pytest.mark.parametrize(
    "command",
    [
        "stats i",
        "stats i --verbose",
        "stats l.parquet",
        "log i",
        "verify i",
        "trace i --step 0",
        "trace i --sample-id 3",
        "diff i j",
        "plan l.parquet -o j --capacity 4096 --on-long truncate --holdout 0.1 --align 8",
    ],
)
def test_no_line_is_wider(
    command: str,
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if " j" in command and not command.startswith("plan"):
        assert main(["plan", "l.parquet", "-o", "j", "--capacity", "4096", "--seed", "3"]) == 0
    capsys.readouterr()
    main(command.split())
    wide = [
        line
        for line in capsys.readouterr().out.splitlines()
        if len(line) > WIDTH and not line.startswith(("try ", "index "))
    ]
    assert not wide
