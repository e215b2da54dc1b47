"""How far a long work is: how much of it, and how long it will take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .console import count

if TYPE_CHECKING:
    from packidx.run.workers import Progress

# What `packidx.run.workers.Progress` calls it -> what is being done, and what is counted.
_WORK = {
    "scan": ("reading shards", "B"),
    "count": ("counting tokens", "records"),
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
