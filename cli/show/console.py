"""Output for people: tables on stdout, progress on stderr; rich is loaded only when used."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from packidx.words import format_count

if TYPE_CHECKING:
    from packidx.run.workers import Progress


# What does something to a terminal instead of being seen: controls (C0, DEL, C1), marks that turn
# the order of text around, other ends of lines; and halves of names that are not UTF-8.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ID = re.compile("[0-9a-f]{12,64}")
_KEPT_LINES = re.compile(rf"(?!\n){_UNSEEN.pattern}")


def escape_unseen(text: str, lines: bool = False) -> str:
    """`text` with control characters as escapes (``\\x1b``), but for the ends of its `lines`."""
    return (_KEPT_LINES if lines else _UNSEEN).sub(
        lambda unseen: unseen[0].encode("unicode_escape").decode("ascii"), text
    )


def json_text(value: Any, **options: Any) -> str:
    """`value` as JSON that does nothing to a terminal."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _KEPT_LINES.sub(lambda unseen: f"\\u{ord(unseen[0]):04x}", text)


def print_line(text: str, err: bool = False, lines: bool = False) -> None:
    """A line, or several, on stdout or stderr. All that commands print goes through this module, so
    that no name in the data reaches the terminal as a command to it."""
    click.echo(escape_unseen(text, lines), err=err)


def print_warnings(texts: Iterable[str]) -> None:
    """A line on stderr for each warning."""
    for text in texts:
        print_line(f"warning: {text}", err=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json_text(value, indent=2))


def print_summary(title: str, summary: Any, as_json: bool) -> None:
    """A dataclass of numbers and places, with ``path`` and ``seconds``, as JSON or as facts."""
    from dataclasses import asdict

    stated = asdict(summary)
    if as_json:
        print_json(stated)
        return
    path, seconds, folders = (stated.pop(name, {}) for name in ("path", "seconds", "sources"))
    facts = {
        name.replace("num_", "").replace("nbytes", "bytes").replace("_", " "): (
            format_count(value) if isinstance(value, int) else value
        )
        for name, value in stated.items()
        if value is not None and name != "warnings"
    }
    facts |= {f"aux {name}": folder for name, folder in folders.items()}
    print_facts(title, {**facts, "output": f"{path} (written in {seconds:.1f} s)"})


_COPIED = ("index", "table", "try", "output", "path", "report", "train")


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Two columns, a name and what it is, under a heading; places and commands, which are copied,
    are not broken."""
    click.secho(escape_unseen(title), bold=True)
    width = max((len(escape_unseen(name)) for name in facts), default=0)
    for name, value in facts.items():
        head = f"{escape_unseen(name):{width}}  "
        if name in _COPIED:
            click.echo(click.style(head, dim=True) + escape_unseen(value))
        else:
            say_wrapped(value, head)


def say_wrapped(text: str, head: str = "") -> None:
    """`text` behind a dim `head`, in lines that end where the terminal does and begin below each
    other; words are never broken."""
    columns = min(120, shutil.get_terminal_size((100, 24)).columns)  # 100 where it goes to a file
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(escape_unseen(text), max(20, columns - len(head)), **whole)
    below = f"\n{' ' * len(head)}"
    click.echo(click.style(head, dim=True) + below.join(lines))


def print_text(text: str) -> None:
    """A result on stdout, as it is: made of what has been escaped, or meant for programs."""
    click.echo(text, nl=False)


_NUMBERS = re.compile(r"–?|[-+]?[\d,]+(\.\d+)?( %)?( \(.*\)| cut)?")


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """A table of rows of the same members, whose names are its header; nothing where there is no
    row. A number has commas, None is a dash, and columns of numbers are right-aligned.

    Where a terminal is too narrow, cells go on below, but for ids, which are copied. Elsewhere a
    table is as wide as it needs.
    """
    listed = list(rows)
    if not listed:
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    cells = [
        [
            escape_unseen(
                format_count(value) if isinstance(value, int | None) else str(value), lines=True
            )
            for value in row.values()
        ]
        for row in listed
    ]
    buffer, terminal = io.StringIO(), sys.stdout.isatty()
    width = None if terminal else 10_000
    console = Console(file=buffer, width=width, force_terminal=terminal, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name, *column in zip(listed[0], *cells, strict=True):
        table.add_column(
            escape(escape_unseen(name, lines=True)),
            justify="right" if all(map(_NUMBERS.fullmatch, column)) else "left",
            overflow="fold",
            no_wrap=any(map(_ID.fullmatch, column)),
        )
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    print_text("".join(f"{line}\n" for line in lines if line))


@contextlib.contextmanager
def show_status(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent with `quiet` or without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda doing: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as line:
        yield lambda doing: line.update(escape(escape_unseen(doing, lines=True)))


def with_parts(total: int, parts: dict[str, int]) -> str:
    """A number, and what it is made up of."""
    listed = ", ".join(f"{format_count(number)} {name}" for name, number in parts.items())
    return f"{format_count(total)} ({listed})" if listed else format_count(total)


# What `packidx.run.workers.Progress` calls it -> what is being done, and what is counted.
_WORK = {
    "scan": ("reading shards", "B"),
    "count": ("counting tokens", "records"),
    "images": ("decoding images", "records"),
    "packs": ("writing packs", "packs"),
    "upload": ("uploading", "files"),
    "files": ("uploading", "files"),
}


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A line on stderr for each kind of work; None with `quiet` or without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {
            name: bar.add_task(text, visible=False, amount="") for name, (text, _) in _WORK.items()
        }

        def show_progress(phase: str, done: int, total: int) -> None:
            task = tasks[phase]
            unit = _WORK[phase][1]
            said = f"{format_count(done)} of {format_count(total)} {unit}"
            if unit == "B":
                said = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            bar.update(task, completed=done, total=total, visible=True, amount=said)

        yield show_progress
