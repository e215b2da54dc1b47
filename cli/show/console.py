"""Output for people: tables on stdout, progress on stderr; rich is loaded only when used."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from packidx.words import count

if TYPE_CHECKING:
    from packidx.run.workers import Progress


# What does something to a terminal instead of being seen: controls (C0, DEL, C1), marks that turn
# the order of text around, other ends of lines; and halves of names that are not UTF-8.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ID = re.compile("[0-9a-f]{12,64}")
_KEPT_LINES = re.compile(rf"(?!\n){_UNSEEN.pattern}")


def visible(text: str, lines: bool = False) -> str:
    """`text` with control characters as escapes (``\\x1b``), but for the ends of its `lines`."""
    return (_KEPT_LINES if lines else _UNSEEN).sub(
        lambda unseen: unseen[0].encode("unicode_escape").decode("ascii"), text
    )


def json_text(value: Any, **options: Any) -> str:
    """`value` as JSON that does nothing to a terminal."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _KEPT_LINES.sub(lambda unseen: f"\\u{ord(unseen[0]):04x}", text)


def say(text: str, err: bool = False, lines: bool = False) -> None:
    """A line, or several, on stdout or stderr. All that commands print goes through this module, so
    that no name in the data reaches the terminal as a command to it."""
    click.echo(visible(text, lines), err=err)


def warn(texts: Iterable[str]) -> None:
    """A line on stderr for each warning."""
    for text in texts:
        say(f"warning: {text}", err=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json_text(value, indent=2))


def print_result(summary: Any, show: Callable[[Any], None], as_json: bool) -> None:
    """A dataclass as one JSON document or, by `show`, in words."""
    if as_json:
        from dataclasses import asdict

        print_json(asdict(summary))
    else:
        show(summary)


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Two columns, a name and what it is, under a heading; what is longer than the terminal is
    wide goes on below itself, but for what is to be copied: places and commands."""
    click.secho(visible(title), bold=True)
    facts = {visible(name): visible(value) for name, value in facts.items()}
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        lines = [value] if name in _COPIED else wrapped(value, width + 2)
        click.echo(click.style(name.ljust(width), dim=True) + f"  {lines[0]}")
        for line in lines[1:]:
            click.echo(" " * (width + 2) + line)


_COPIED = ("index", "table", "try", "output", "path", "report", "train")


def wrapped(text: str, indent: int) -> list[str]:
    """`text` in lines that end where the terminal does, of which each begins behind `indent`
    columns; words are never broken."""
    room = max(20, terminal_width() - indent)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def say_wrapped(text: str, first: str = "", more: str = "") -> None:
    """A sentence in as many lines as it needs: `first` stands before it, `more` before the other
    lines."""
    lines = wrapped(visible(text), len(more))
    for number, line in enumerate(lines):
        click.echo(f"{more if number else first}{line}")


def cut_left(text: str, width: int) -> str:
    """`text`, or as much of its end as fits: names of one data set differ there."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def print_marked(title: str, rows: Iterable[tuple[str, str, str]]) -> None:
    """A mark, a name and what is to be said of it in each line, under a heading; what is longer
    than the terminal is wide goes on below itself."""
    listed = [tuple(visible(text) for text in row) for row in rows]
    marked = max((len(mark) for mark, _, _ in listed), default=0)
    width = max((len(name) for _, name, _ in listed), default=0)
    click.secho(visible(title), bold=True)
    for mark, name, text in listed:
        head = f"{mark:{max(2, marked)}}  {name:{width}}  "
        first, *more = wrapped(text, len(head))
        click.echo(f"{_marked(mark, head)}{first}".rstrip())
        for line in more:
            click.echo(" " * len(head) + line)


def terminal_width() -> int:
    """Columns for text that is wrapped; 100 where it goes to a file."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


def _marked(mark: str, text: str) -> str:
    is_bad = mark in ("NO", "FAILED")
    return click.style(text, fg="red", bold=True) if is_bad else click.style(text, dim=True)


def print_marked_text(runs: Iterable[tuple[str, bool]]) -> None:
    """Text of which some parts are marked: in colour on a terminal, else, and where NO_COLOR is
    set, in brackets: ``⟦so⟧``."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    shown = []
    for text, marked in runs:
        text = visible(text, lines=True)
        if marked:
            text = click.style(text, fg="green", bold=True) if coloured else f"⟦{text}⟧"
        shown.append(text)
    click.echo("".join(shown))


def print_text(text: str) -> None:
    """A result on stdout, as it is: made of what has been escaped, or meant for programs."""
    click.echo(text, nl=False)


_NUMBERS = re.compile(r"–?|[-+]?[\d,]+(\.\d+)?( %)?( \(.*\)| cut)?")


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """A table of rows of the same members, whose names are its header; nothing where there is no
    row. A number has commas, None is a dash, and columns of numbers are right-aligned."""
    listed = list(rows)
    if not listed:
        return
    cells = [[_cell(value) for value in row.values()] for row in listed]
    right = [all(map(_NUMBERS.fullmatch, column)) for column in zip(*cells, strict=True)]
    print_text(format_table(list(listed[0]), cells, right, terminal_width()))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return count(value) if isinstance(value, int) else str(value)


def format_table(
    columns: list[str],
    rows: Iterable[Iterable[str]],
    right: Iterable[bool],
    wanted: int | None = None,
) -> str:
    """The text of a table, as wide as it needs where stdout is not a terminal.

    Where a terminal is too narrow, columns stand closer and cells go on below, but for ids, which
    are copied.

    Args:
        wanted: columns of text beyond which the table's stand closer wherever it goes.
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    listed = [[visible(text, lines=True) for text in row] for row in rows]
    widths = [max(map(len, (name, *cells))) for name, *cells in zip(columns, *listed, strict=True)]
    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=None if terminal else 10_000, force_terminal=terminal, highlight=False
    )
    is_narrow = sum(widths) + 3 * (len(widths) - 1) > min(console.width, wanted or console.width)
    ids = [any(_ID.fullmatch(cell) for cell in cells) for cells in zip(*listed, strict=True)]
    room = console.width - sum(widths[at] for at, is_id in enumerate(ids) if is_id)
    keeps_ids = room >= 2 * len(widths)  # else nothing would be left for the other columns
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if is_narrow else 1))
    for at, (name, is_right) in enumerate(zip(columns, right, strict=True)):
        table.add_column(
            escape(visible(name, lines=True)),
            justify="right" if is_right else "left",
            overflow="fold",
            no_wrap=keeps_ids and any(ids[at : at + 1]),
        )
    for row in listed:
        table.add_row(*map(escape, row))
    console.print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "".join(f"{line}\n" for line in lines if line)


@contextlib.contextmanager
def status(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent with `quiet` or without a terminal."""
    console = None if quiet or not sys.stderr.isatty() else _progress_console()
    if console is None:
        yield lambda doing: None
        return
    from rich.markup import escape

    with console.status("starting") as line:
        yield lambda doing: line.update(escape(visible(doing, lines=True)))


def _progress_console() -> Any:
    """Return the console on stderr that shows progress, or None without rich."""
    try:
        from rich.console import Console

        return Console(stderr=True)
    except Exception:
        return None


def with_parts(total: int, parts: dict[str, int]) -> str:
    """A number, and what it is made up of."""
    listed = ", ".join(f"{count(number)} {name}" for name, number in parts.items())
    return f"{count(total)} ({listed})" if listed else count(total)


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

        def progress(phase: str, done: int, total: int) -> None:
            task = tasks[phase]
            unit = _WORK[phase][1]
            said = f"{count(done)} of {count(total)} {unit}"
            if unit == "B":
                said = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            bar.update(task, completed=done, total=total, visible=True, amount=said)

        yield progress
