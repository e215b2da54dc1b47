"""Commands whose help has its options in groups, each with an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click


class Group(NamedTuple):
    """Options that belong together.

    Attributes:
        name: the heading.
        example: some of them as they are typed.
        options: the parameters' names, in the order of the help.
    """

    name: str
    example: str
    options: tuple[str, ...]


class GroupedCommand(click.Command):
    """A command with groups of options; those that no group names, ``--help`` among them, are last.

    Attributes:
        groups: in the order of the help.
    """

    def __init__(self, *args: Any, groups: Sequence[Group], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = tuple(groups)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group, its example below it."""
        records = {
            parameter.name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        }
        for group in self.groups:
            with formatter.section(group.name.capitalize()):
                formatter.write_dl([records.pop(name) for name in group.options])
                formatter.write_text(f"for example: {group.example}")
        with formatter.section("Other options"):
            formatter.write_dl(list(records.values()))
