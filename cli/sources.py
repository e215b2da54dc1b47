"""What commands that read sources have in common: options, and what they say of the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from packidx.records.layout import COLUMNS, PAIRS, TAGS
from packidx.records.sources import MIX

from .options import Decorator, option, pairs_option, settings_option, together, trust_option
from .show.console import count, format_table, print_text, terminal_width, warn

_Examples = Mapping[tuple[str, str], tuple[str, str]]


def _with_mixes(context: Any, parameter: Any, given: tuple[str, ...]) -> tuple[str, ...]:
    """The sources, with those of ``--mix-file`` behind them."""
    sources = given + tuple(f"{MIX}{file}" for file in context.params.pop("mix_files", ()))
    if not sources and context.command.name != "pack":  # which may do without
        raise click.MissingParameter(ctx=context, param=parameter)
    return sources


def sources_argument(metavar: str = "SOURCE...") -> Decorator:
    """The sources of a command, and the files of `mix_file_option`."""
    return click.argument("sources", metavar=metavar, nargs=-1, callback=_with_mixes)


_mix_file = option(
    "--mix-file mix_files",
    "FILE",
    "A SOURCE that is a mix, whatever its name is; else the name says so: *.yaml, mix.json, "
    "*.mix.json, meta*.json, dataset_info.json. Repeat for more.",
    multiple=True,
    is_eager=True,
)


def processor_option(required: bool = False) -> Decorator:
    """``--processor``, the one that training uses."""
    without = "" if required else " Without it lengths are guesses."
    return click.option(
        "--processor",
        required=required,
        metavar="DIR_OR_NAME",
        help=f"Folder or hub name of the Hugging Face processor that training uses.{without}",
    )


_labels = option(
    "--labels",
    "WORDS",
    "Which tokens are trained on, as in last,no-thinking,no-eot; needs --processor.",
)
transform_option = option(
    "--transform",
    "MODULE:NAME",
    "f(record, rng) -> record, applied before a record is encoded, here and in training.",
)
pair_option = option(
    "--pair",
    None,
    "Take one side of preference pairs as a record of its own, or both, as two samples that a"
    " plan keeps together. Without it such records are rejected; with it all others are.",
    type=click.Choice(PAIRS),
)
_media_root = option(
    "--media-root",
    "DIR",
    "Folder of the media, or its URL: relative paths start there, and nothing outside it is "
    "read, links resolved.  [default: each shard's own folder]",
)
_remote_media = option(
    "--remote-media",
    "PREFIX",
    "Folder, or URL such as s3://corpus/images/, elsewhere, below which records may refer to "
    "files. Repeat for more.  [default: none but the media root, or a shard's folder]",
    multiple=True,
)
_columns = pairs_option(
    "--column",
    "columns",
    "NAME=FIELD",
    f"FIELD of the records is the column NAME: {', '.join(COLUMNS)}. Repeat for more.",
)
_tags = pairs_option(
    "--tag",
    "tags",
    "NAME=VALUE",
    "role_tag and content_tag: the keys of a turn; the others: the role's word in it, or "
    "several with commas between. "
    f"NAME is one of {', '.join(TAGS)}.",
)
_ignore = option(
    "--ignore",
    "FIELD",
    "FIELD of the records is as if it were not there. Repeat for more.  [default: a record "
    "with an image, turns or the like in a FIELD that nothing reads is rejected]",
    multiple=True,
)
_delimiter = option(
    "--delimiter",
    "CHAR",
    "Between the cells of CSV and TSV files. A TSV has no quotes unless this is stated.",
)
_max_rejected = option(
    "--max-rejected",
    "SHARE",
    "Exit with 1 where more than SHARE of a source's records is rejected, 0.05 or 5%; what is"
    " counted is written all the same.  [default: where nothing of a source is left]",
)

how_options = together(processor_option(), settings_option(), trust_option, _labels)
"""How a table is counted: `transform_option` apart."""
record_options = together(
    *(_columns, _tags, _ignore, _delimiter),
    *(_media_root, _remote_media, _mix_file, _max_rejected),
)
"""What the records of all sources look like."""


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


def print_columns(sources: Sequence[Mapping[str, Any]]) -> None:
    """Per source its columns: used as what, carried, not used, and ignored."""
    from packidx.records.ledger import by_use

    rows = [[source["name"], *by_use(source["columns"] or {})] for source in sources]
    width = 5 if any(row[4] for row in rows) else 4
    header = ["source", "columns used as", "carried", "not used", "ignored"][:width]
    cells = [row[:width] for row in rows]
    print_text(format_table(header, cells, [False] * width, terminal_width()))


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
