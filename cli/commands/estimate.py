"""`packidx estimate`: count every sample's tokens into a lengths table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from packidx.records.layout import PAIRS

from ..options import output_option, settings_option, worker_options
from ..show.console import (
    count,
    not_read,
    number_of,
    print_facts,
    print_json,
    say,
    taken_from,
    with_parts,
)
from ..show.facts import compared_fact
from ..show.mistaken import print_mistaken
from ..show.samples import print_samples, shown_samples
from ..show.taken_over import taken_over_facts
from ..sources import print_sources, progress_bar, source_options, warn_of_rejected

if TYPE_CHECKING:
    from packidx.estimate import LengthsSummary


@click.command("estimate")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@output_option("Folder of the lengths table; one that is there already is replaced as a whole.")
@click.option(
    "--processor",
    metavar="DIR_OR_NAME",
    help="Folder or hub name of the Hugging Face processor that training uses. "
    "Without it lengths are guesses.",
)
@settings_option()
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
    "--method",
    type=click.Choice(["heuristic"]),
    help="Guess text by its characters where a record does not state its tokens, whatever the "
    "--processor has; media are counted by it.",
)
@click.option(
    "--text-engine",
    default="auto",
    show_default=True,
    metavar="auto|gigatoken|tokenizers",
    help="What tokenizes; auto takes the faster one for the data, if both agree on its text.",
)
@click.option(
    "--pair",
    type=click.Choice(PAIRS),
    help="Take one side of preference pairs as a record of its own, or both, as two samples that "
    "a plan keeps together. Without it such records are rejected; with it all others are.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Count all, where otherwise rows of shards that have not changed are taken over from the "
    "table that is there. Files that records refer to may have changed, too.",
)
@click.option(
    "--show",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the first N samples, by turns of the sources, as the model will see them, with the "
    "text that is trained on marked.",
)
@worker_options("count")
@source_options
def estimate(
    max_rejected: str | None, quiet: bool, as_json: bool, show: int | None, **options: Any
) -> None:
    """Count the tokens of every record of the SOURCEs, without decoding pixels.

    A SOURCE is a file of records, a mix, a glob or a folder, here or at s3://…; NAME=SOURCE names
    it. Every record becomes a row of the lengths table: one that cannot be a sample is marked
    rejected, with the reason. --column, --tag, --delimiter and --pair hold for all SOURCEs; a mix
    must not state the same.
    """
    if options["encode"] is None and options["transform"] is None:  # who may want it
        from ..startup import spare_pandas

        spare_pandas()
    from packidx.estimate import estimate_lengths
    from packidx.estimate.summary import read_limit, rejection_warnings

    read_limit(max_rejected)  # before the work is done
    if show is not None and options["processor"] is None and options["encode"] is None:
        raise click.UsageError("--show needs what makes the tokens: give --processor or --encode")
    with progress_bar(quiet) as progress:
        summary = estimate_lengths(progress=progress, **options)
    untrained = _untrained(summary)
    warnings = [*summary.warnings, *_damaged(summary)]
    samples = None if show is None else shown_samples(summary.path, show, options)
    if as_json:
        told = [*warnings, *untrained, *rejection_warnings(summary.sources)]
        document = dataclasses.asdict(summary) | {"warnings": told}
        if samples is not None:
            document["shown"] = [
                dataclasses.asdict(sample) | {"runs": [run._asdict() for run in sample.runs]}
                for sample in samples
            ]
        print_json(document)
    else:
        _print(summary)
        if samples is not None:
            print_samples(samples)
    if summary.discarded_parts:
        removed = "was removed" if summary.discarded_parts == 1 else "were removed"
        parts = number_of(summary.discarded_parts, "finished part")
        say(f"note: {parts} of a run with other settings {removed}", err=True)
    for text in (*warnings, *_guessed(summary, options), *untrained):
        say(f"warning: {text}", err=True)
    command = click.get_current_context().find_root().obj
    print_mistaken(summary.mistaken, command, len(summary.sources) == 1)
    warn_of_rejected(summary.sources, max_rejected, summary.path)


def _print(summary: LengthsSummary) -> None:
    state = "unchanged" if summary.existed else f"written in {summary.seconds:.1f} s"
    facts = {"samples": with_parts(summary.num_samples, summary.methods)}
    facts["tokens"] = count(summary.num_tokens)
    facts["rejected"] = with_parts(summary.num_rejected, summary.rejected)
    if summary.num_rejected:
        facts["rejected"] += f": see key, reason and detail in {summary.path}/part-*.parquet"
    facts |= not_read(summary.not_read)
    facts |= taken_from(summary.taken_from)
    if said := compared_fact(summary.compared, summary.methods):
        facts["compared"] = said
    facts["table"] = f"{summary.path} ({state})"
    if summary.calibrated:
        facts["calibrated"] = f"on {number_of(summary.calibrated, 'sample')}, encoded for real"
    facts |= taken_over_facts(summary.taken_over)
    if summary.resumed_parts:
        facts["resumed"] = f"{summary.resumed_parts} of {summary.num_parts} parts were done before"
    print_facts("Lengths", facts)
    from packidx.lengths.existing import first_rejected

    kinds = [
        (source["name"], reason) for source in summary.sources for reason in source["rejected"]
    ]
    print_sources(summary.sources, first_rejected(summary.path, kinds) if kinds else {})


def _damaged(summary: LengthsSummary) -> list[str]:
    """A sentence for every part of the earlier table that was of no use."""
    parts = [] if summary.taken_over is None else summary.taken_over.damaged
    return [f"{text}; its rows are counted again" for text in parts]


def _untrained(summary: LengthsSummary) -> list[str]:
    """A sentence for every source without a label token."""
    from packidx.index.untrained import without_labels

    usable = {
        source["name"]: source["num_samples"] - source["num_rejected"]
        for source in summary.sources
        if source["num_label_tokens"] == 0
    }
    return [without_labels(name, number) for name, number in usable.items() if number]


def _guessed(summary: LengthsSummary, options: dict[str, Any]) -> list[str]:
    guessed = sum(number for name, number in summary.methods.items() if name != "exact")
    if not guessed or summary.calibrated:
        return []
    text = f"{guessed:,} of {summary.num_samples:,} lengths are not exact (see column method)"
    if options["processor"] is None and options["encode"] is None:
        text += ": no --processor was given, so packs will need a margin"
    return [text]
