"""Help: options in groups with an example each, and nothing wider than 100 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import cloup
import pytest
from packidx_cli.main import cli, main

FEW = 8  # options that one takes in without groups


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


@pytest.mark.parametrize("name", COMMANDS)
def test_many_options_are_in_groups(name: str) -> None:
    options = [param for param in COMMANDS[name].params if isinstance(param, click.Option)]
    assert name in GROUPED or len(options) <= FEW


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
