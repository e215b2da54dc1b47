"""Output for people: rich tables on stdout, progress on stderr; loaded only when used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Two aligned columns, a name and what it is, under a heading."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(escape(name), escape(value))
    console = Console(highlight=False, soft_wrap=False)
    if title:
        console.print(f"[bold]{escape(title)}[/bold]")
    console.print(table)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], right: int = 0) -> None:
    """A table with a header; columns from number `right` on are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if number >= right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    Console(highlight=False).print(table)


def count(value: int | None) -> str:
    """An integer with thin separators, or a dash for unknown."""
    return "–" if value is None else f"{value:,}"
