"""A group of commands, each of which is loaded only when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands in the order of the help: name -> module in `packidx_cli.commands`, line of help."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        command = getattr(
            import_module(f"packidx_cli.commands.{self._lazy[cmd_name][0]}"), cmd_name
        )
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named; of one that there is not, the error names the near one."""
        name = args[0]
        if name in self._lazy or ctx.resilient_parsing or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, self._lazy, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return ctx.fail(f"No such command {name!r}.{hint}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and lines of help, without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])
