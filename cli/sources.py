"""What commands that read sources have in common: options, and what they say of the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from packidx.records.layout import COLUMNS, TAGS

from .options import json_option, pairs_option, together
from .show.console import count, format_table, print_text, terminal_width, warn

_Examples = Mapping[tuple[str, str], tuple[str, str]]

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


def print_sources(sources: Sequence[Mapping[str, Any]], examples: _Examples) -> None:
    """Per source what is usable and what is not, by reason, commonest first.

    Args:
        sources: ``name``, ``num_samples``, ``num_rejected`` and ``rejected`` (rows by reason).
        examples: source and reason -> a record and what is wrong with it.
    """
    rows = []
    for source in sources:
        good = source["num_samples"] - source["num_rejected"]
        rows.append([source["name"], count(good), count(source["num_rejected"]), "", ""])
        for reason, number in sorted(source["rejected"].items(), key=lambda pair: -pair[1]):
            example = examples.get((source["name"], reason))
            rows.append(["", "", count(number), reason, ": ".join(example) if example else ""])
    header = ["source", "ok", "rejected", "reason", "for example"]
    width = len(header) if examples else len(header) - 1
    cells = [row[:width] for row in rows]
    right = [False, True, True, False, False][:width]
    print_text(format_table(header[:width], cells, right, terminal_width()))


def warn_of_rejected(sources: Sequence[Mapping[str, Any]], limit: str | None, path: str) -> None:
    """Warnings on stderr, and the error where a source is over the limit.

    Raises:
        SourceError: more of a source is rejected than `limit`, or, without one, all of it.
    """
    from packidx.estimate.summary import check_rejected, over_limit, read_limit, rejection_warnings

    share = read_limit(limit)
    over = over_limit(sources, share)
    warn(rejection_warnings([source for source in sources if source not in over]))
    check_rejected(sources, share, path)
