"""`packidx export`: write a snapshot's packs for other loaders."""

from __future__ import annotations

from importlib import import_module

import click

# kind -> (module, one line of help)
_KINDS = {
    "energon": (
        "packidx_cli.commands.export.energon",
        "Packs for Megatron-Energon, no media copied.",
    ),
    "wds": ("packidx_cli.commands.export.wds", "Packs as the samples of new WebDataset tars."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _KINDS:
            return None
        command = getattr(import_module(_KINDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _KINDS.items()])


@click.group(cls=_LazyGroup)
def export() -> None:
    """Write a snapshot's packs for loaders that do not read the index."""
