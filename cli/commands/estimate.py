"""`packidx estimate`: count every sample's tokens into a lengths table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click
import cloup

from packidx.words import format_count

from ..options import json_option, option, option_group, output_option, quiet_option, worker_options
from ..show import console
from ..sources import (
    answer_options,
    how_options,
    max_rejected_option,
    print_hints,
    print_lengths,
    record_options,
    sources_argument,
    untrained_warnings,
)


@cloup.command()
@sources_argument()
@option_group(
    "how to count",
    "--processor Qwen/Qwen2.5-VL-7B-Instruct --labels last "
    "--processor-set images.max_pixels=602112",
    how_options,
    option("--seed INTEGER", "Seed passed to --transform.", type=int, default=0, show_default=True),
)
@option_group(
    "what the records look like",
    "--column messages=dialog --tag role_tag=speaker --media-root photos/",
    record_options,
    max_rejected_option,
    answer_options,
)
@option_group(
    "scale",
    "--workers 8",
    worker_options("count"),
    {
        "--fresh": "Count everything; otherwise unchanged shards keep their rows from the table "
        "that is there. Files that records refer to may have changed, too."
    },
)
@option_group(
    "output",
    "-o lengths/ --show 3",
    output_option("Folder of the lengths table; one that is there already is replaced."),
    {
        "--show N:1": "Print the first N samples, by turns of the sources, as the model will see "
        "them, with the text that is trained on marked."
    },
    json_option,
    quiet_option,
)
def estimate(
    max_rejected: str | None, quiet: bool, as_json: bool, show: int | None, **options: Any
) -> None:
    """Count the tokens of every record of the SOURCEs, without decoding pixels.

    A SOURCE is a file of records, a mix, a glob or a folder, here or at s3://…; NAME=SOURCE names
    it. Every record becomes a row of the lengths table: one that cannot be a sample is marked
    rejected, with the reason. --column, --tag, --delimiter and --pair hold for all SOURCEs; a mix
    must not state the same.
    """
    from ..startup import collect_garbage_rarely, spare_pandas

    collect_garbage_rarely()
    if options["encode"] is None and options["transform"] is None:  # who may want it
        spare_pandas()
    from packidx.estimate import estimate_lengths
    from packidx.estimate.summary import read_limit, rejection_warnings

    read_limit(max_rejected)  # before the work is done
    if show is not None and options["processor"] is None and options["encode"] is None:
        raise click.UsageError("--show needs what makes the tokens: give --processor or --encode")
    with console.progress_bar(quiet) as progress:
        summary = estimate_lengths(progress=progress, **options)
    samples = None
    if show is not None:
        from packidx.inspect.shown import shown_samples
        from packidx.recipe import encoder_of
        from packidx.user_code import Transform

        encode, given = encoder_of(options, "--encode"), options["transform"]
        tokenizer = None if options["encode"] is not None else encode.files.tokenizer
        transform = None if given is None else Transform.load(given, options["seed"])
        samples = shown_samples(summary.path, show, encode, tokenizer, transform)
    if as_json:
        warnings = [*summary.warnings, *untrained_warnings(summary)]
        warnings += rejection_warnings(summary.sources)
        document = dataclasses.asdict(summary) | {"warnings": warnings}
        if samples is not None:
            document["shown"] = samples
        console.print_json(document)
    else:
        print_lengths(summary)
        if samples is not None:
            print_samples(samples)
    print_hints(summary, {**options, "max_rejected": max_rejected})


def print_samples(samples: Sequence[Mapping[str, Any]]) -> None:
    """Each sample: what it is called, how long it is, and its text."""
    for sample in samples:
        named = " ".join(filter(None, (sample[name] for name in ("source", "key"))))
        console.print_line("")
        if sample["error"] is not None:
            console.print_line(f"── {named}: cannot be built: {sample['error']}")
            continue
        labels, planned = sample["label_tokens"], ""
        trained = f"{format_count(labels)} trained" if labels else "NOTHING is trained"
        if sample["length"] != sample["planned_length"]:
            planned = f" ({format_count(sample['planned_length'])} by the table)"
        console.print_line(
            f"── {named}: {format_count(sample['length'])} tokens{planned}, {trained}"
        )
        marks = {True: "⟦{}⟧", False: "{}"}
        texts = [marks[run["trained"]].format(run["text"]) for run in sample["runs"]]
        console.print_line("".join(texts), lines=True)
    if not samples:
        console.print_line("no sample to show: every record was rejected")
