"""`packidx estimate`: count every sample's tokens into a lengths table."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError
from packidx.records.layout import COLUMNS, TAGS

from .console import count, print_facts, print_json

if TYPE_CHECKING:
    from packidx.estimate import LengthsSummary
    from packidx.estimate.progress import Progress


@click.command("estimate")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="DIR",
    type=click.Path(),
    help="Folder of the lengths table; one that is there already is replaced as a whole.",
)
@click.option(
    "--processor",
    metavar="DIR_OR_NAME",
    help="Folder or hub name of the Hugging Face processor that training uses. "
    "Without it lengths are guesses.",
)
@click.option(
    "--encode",
    metavar="MODULE:NAME",
    help="Instead of a processor, the encoder that training uses: any callable(record) that "
    "returns input_ids, or its count(record). NAME() calls NAME first.",
)
@click.option(
    "--labels",
    metavar="WORDS",
    help="Which tokens are trained on, as in last,no-thinking,no-eot; needs --processor.",
)
@click.option(
    "--transform",
    metavar="MODULE:NAME",
    help="f(record, rng) -> record, applied before a record is encoded, here and in training.",
)
@click.option("--seed", default=0, show_default=True, help="Of --transform and --calibrate.")
@click.option(
    "--calibrate",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Do not tokenize or encode: guess, and encode N random samples with the --processor or "
    "--encode to see how far the guesses are off. plan makes its margin of that.",
)
@click.option(
    "--text-engine",
    default="auto",
    show_default=True,
    metavar="auto|gigatoken|tokenizers",
    help="What tokenizes; auto takes the faster one if both agree on the data's own text.",
)
@click.option(
    "--media-root",
    metavar="DIR",
    type=click.Path(),
    help="Folder of the media; nothing outside it is read.  [default: each shard's own folder]",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=FIELD",
    help=f"FIELD of the records is the column NAME: {', '.join(COLUMNS)}. Repeat for more.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME=VALUE",
    help="role_tag and content_tag: the keys of a turn; the others: the role's word in it. "
    f"NAME is one of {', '.join(TAGS)}.",
)
@click.option("--delimiter", metavar="CHAR", help="Between the cells of CSV and TSV files.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes to count with.  [default: one per CPU]",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def estimate(
    sources: tuple[str, ...],
    output: str,
    columns: tuple[str, ...],
    tags: tuple[str, ...],
    workers: int | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Count the tokens of every record of the SOURCEs, without decoding pixels.

    A SOURCE is a file of records, a mix, a glob or a folder; NAME=SOURCE names it. Every record
    becomes a row of the lengths table: one that cannot be a sample is marked rejected, with the
    reason. --column, --tag and --delimiter hold for all SOURCEs; a mix must not state the same.
    """
    from packidx.estimate import estimate_lengths

    with progress_bar(quiet or not sys.stderr.isatty()) as progress:
        summary = estimate_lengths(
            list(sources),
            output,
            columns=pairs_of("--column", "FIELD", columns),
            tags=pairs_of("--tag", "VALUE", tags),
            workers=workers,
            progress=progress,
            **options,
        )
    if as_json:
        print_json(dataclasses.asdict(summary))
    else:
        _print(summary)
    _warn(summary, options)


def pairs_of(option: str, what: str, values: tuple[str, ...]) -> dict[str, str]:
    """``{NAME: what}`` of a repeated option.

    Raises:
        OptionError: a value without ``=``, or a name given twice.
    """
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, word = value.partition("=")
        if not (name and equals and word):
            raise OptionError(f"{option} {value}: write NAME={what}")
        if name in pairs:
            raise OptionError(f"{option} {name} is given twice, {pairs[name]!r} and {word!r}")
        pairs[name] = word
    return pairs


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
        words["calibrate"] = "encoding samples"
        tasks = {name: bar.add_task(text, visible=False) for name, text in words.items()}

        def progress(phase: str, done: int, total: int) -> None:
            bar.update(tasks[phase], completed=done, total=total, visible=True)

        yield progress


def _print(summary: LengthsSummary) -> None:
    state = "unchanged" if summary.existed else f"written in {summary.seconds:.1f} s"
    facts = {"samples": with_parts(summary.num_samples, summary.methods)}
    facts["tokens"] = count(summary.num_tokens)
    facts["rejected"] = with_parts(summary.num_rejected, summary.rejected)
    if summary.num_rejected:
        facts["rejected"] += f": see key, reason and detail in {summary.path}/part-*.parquet"
    facts["table"] = f"{summary.path} ({state})"
    if summary.calibrated:
        facts["calibrated"] = f"on {count(summary.calibrated)} samples, encoded for real"
    if summary.resumed_parts:
        facts["resumed"] = f"{summary.resumed_parts} of {summary.num_parts} parts were done before"
    print_facts("Lengths", facts)


def with_parts(total: int, parts: dict[str, int]) -> str:
    listed = ", ".join(f"{count(number)} {name}" for name, number in parts.items())
    return f"{count(total)} ({listed})" if listed else count(total)


def _warn(summary: LengthsSummary, options: dict[str, Any]) -> None:
    if summary.discarded_parts:
        text = f"{summary.discarded_parts} finished parts of a run with other settings were removed"
        click.echo(f"note: {text}", err=True)
    guessed = sum(number for name, number in summary.methods.items() if name != "exact")
    if options["processor"] is None and options["encode"] is None:
        text = "no --processor was given: lengths are not exact, so packs will need a margin"
    elif guessed and not summary.calibrated:
        text = f"{guessed:,} of {summary.num_samples:,} lengths are not exact (see column method)"
    else:
        return
    click.echo(f"warning: {text}", err=True)
