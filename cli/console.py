"""Output for people: tables on stdout, progress on stderr; rich is loaded only when used."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Two aligned columns, a name and what it is, under a heading; lines are never broken."""
    click.secho(title, bold=True)
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(click.style(name.ljust(width), dim=True) + f"  {value}")


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], right: int = 0) -> None:
    """A table with a header; columns from number `right` on are right-aligned."""
    header = list(columns)
    click.echo(
        format_table(header, rows, [number >= right for number in range(len(header))]), nl=False
    )


def format_table(columns: list[str], rows: Iterable[Iterable[str]], right: Iterable[bool]) -> str:
    """The text of a table, as wide as it needs where stdout is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_right in zip(columns, right, strict=True):
        table.add_column(escape(name), justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    buffer = io.StringIO()
    terminal = sys.stdout.isatty()
    width = None if terminal else 10_000
    Console(file=buffer, width=width, force_terminal=terminal, highlight=False).print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "".join(f"{line}\n" for line in lines if line)


@contextlib.contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent with `quiet` or without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda doing: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as line:
        yield line.update


def count(value: int | None) -> str:
    """An integer with thousands separators, or a dash for unknown."""
    return "–" if value is None else f"{value:,}"


def with_parts(total: int, parts: dict[str, int]) -> str:
    """A number, and what it is made up of."""
    listed = ", ".join(f"{count(number)} {name}" for name, number in parts.items())
    return f"{count(total)} ({listed})" if listed else count(total)


def not_read(notes: Sequence[str]) -> dict[str, str]:
    """What of the sources is not read, as facts for `print_facts`."""
    return {"not read": "; ".join(notes)} if notes else {}
