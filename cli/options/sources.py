"""What commands that read sources have in common: options and the progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from packidx.records.layout import COLUMNS, TAGS

from .together import json_option, pairs_option, together

if TYPE_CHECKING:
    from packidx.run.progress import Progress

source_options = together(
    click.option(
        "--media-root",
        metavar="DIR",
        type=click.Path(),
        help="Folder of the media, or its URL. If stated, nothing outside it is read.  [default: "
        "relative paths stay below each shard's own folder; absolute paths and links may lead "
        "anywhere]",
    ),
    click.option(
        "--remote-media",
        multiple=True,
        metavar="PREFIX",
        help="URL, such as s3://corpus/images/, below which records may refer to objects. Repeat "
        "for more.  [default: none but those below a media root, or a shard's folder, in a store]",
    ),
    pairs_option(
        "--column",
        "columns",
        "NAME=FIELD",
        f"FIELD of the records is the column NAME: {', '.join(COLUMNS)}. Repeat for more.",
    ),
    pairs_option(
        "--tag",
        "tags",
        "NAME=VALUE",
        "role_tag and content_tag: the keys of a turn; the others: the role's word in it. "
        f"NAME is one of {', '.join(TAGS)}.",
    ),
    click.option("--delimiter", metavar="CHAR", help="Between the cells of CSV and TSV files."),
    click.option(
        "--max-rejected",
        metavar="SHARE",
        help="Exit with 1 where more than SHARE of a source's records is rejected, 0.05 or 5%; "
        "what is counted is written all the same.  [default: where nothing of a source is left]",
    ),
    click.option("--quiet", is_flag=True, help="Show no progress."),
    json_option("Print the result as one JSON object."),
)
"""Media root, remote media, columns, tags, delimiter, max-rejected, quiet and json."""


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A bar on stderr, or nothing."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        words = {"scan": "reading shards", "count": "counting tokens"}
        words |= {"calibrate": "encoding samples", "upload": "uploading"}
        tasks = {name: bar.add_task(text, visible=False) for name, text in words.items()}

        def progress(phase: str, done: int, total: int) -> None:
            bar.update(tasks[phase], completed=done, total=total, visible=True)

        yield progress
