"""Options of all commands that read sources, and their messages about the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from packidx.format.terms import ANSWERS, COLUMNS, PAIR_SIDES, TAGS
from packidx.inspect.facts import verified_facts
from packidx.words import format_count, number_of

from .options import Decorator, combine_options, option, pairs_option, settings_option, trust_option
from .show import console

if TYPE_CHECKING:
    from packidx.estimate.api import LengthsSummary


_Examples = Mapping[tuple[str, str], tuple[str, str]]


def sources_argument(metavar: str = "SOURCE...") -> Decorator:
    """The sources of a command."""
    return click.argument("sources", metavar=metavar, nargs=-1, required=True)


def processor_option(required: bool = False) -> Decorator:
    """``--processor``, the one that training uses."""
    without = "" if required else " Without it lengths are guesses."
    return option(
        "--processor DIR_OR_NAME",
        f"Folder or hub name of the Hugging Face processor that training uses.{without}",
        required=required,
    )


answer_options = combine_options(
    option(
        f"--pair {'|'.join(PAIR_SIDES)}",
        "Take one side of preference pairs as a record of its own. Without it such records are"
        " rejected; with it all others are.",
    ),
    option(
        "--answers",
        "Take the first of different answers to a question. Without it such records are rejected.",
        type=click.Choice(ANSWERS),
        is_flag=False,
    ),
)
"""Options that choose one of several answers."""
max_rejected_option = option(
    "--max-rejected SHARE",
    "Exit with 1 where more than SHARE of a source's records is rejected, 0.05 or 5%; what is"
    " counted is written all the same.  [default: 5% and 20 records]",
)
_how = {
    "--encode MODULE:NAME": "Instead of a processor, the encoder that training uses: any "
    "callable(record) that returns input_ids, or its count(record). NAME() calls NAME first.",
    "--labels WORDS": "Which tokens to train on, all, last or no-eot (last,no-eot); needs "
    "--processor.",
    "--transform MODULE:NAME": "f(record, rng) -> record, applied before a record is encoded, here "
    "and in training.",
}
how_options = combine_options(
    processor_option(),
    settings_option(),
    trust_option,
    *(option(stated, help) for stated, help in _how.items()),
)
"""How a table is counted."""
record_options = combine_options(
    pairs_option(
        "--column columns NAME=FIELD",
        f"FIELD of the records is the column NAME: {', '.join(COLUMNS)}. Repeat for more.",
    ),
    pairs_option(
        "--tag tags NAME=VALUE",
        "role_tag and content_tag: the keys of a turn; the others: the role's word in it, or "
        f"several with commas between. NAME is one of {', '.join(TAGS)}.",
    ),
    option(
        "--ignore FIELD,…",
        "Treat these columns, and keys of messages, as if they were not there. Media, prose and "
        "lists of objects that nothing reads must be named here.",
        multiple=True,
        callback=lambda _context, _parameter, values: (
            tuple(",".join(values).split(",")) if values else ()
        ),
    ),
    option(
        "--delimiter CHAR",
        "The character between cells of CSV and TSV files. In a TSV quotes are text unless this is "
        "given.",
    ),
    option(
        "--media-root DIR",
        "Folder of the media, or its URL: relative paths start there, and nothing outside it is "
        "read, links resolved.  [default: each shard's own folder]",
    ),
    option(
        "--remote-media PREFIX",
        "Another folder, or a URL such as s3://corpus/images/, in which records may refer to "
        "files. Repeat for more.  [default: only the media root, or a shard's folder]",
        multiple=True,
    ),
)
"""What the records of all sources look like."""


def print_sources(sources: Sequence[Mapping[str, Any]], examples: _Examples) -> None:
    """Per source what is usable and what is not, by reason, commonest first, with `examples`:
    source and reason -> a record and what is wrong with it."""
    rows: list[dict[str, Any]] = []
    blank = {"for example": ""} if examples else {}
    for source in sources:
        good = source["num_samples"] - source["num_rejected"]
        of_source = {"source": source["name"], "ok": good, "rejected": source["num_rejected"]}
        rows.append(of_source | {"reason": ""} | blank)
        for reason, number in sorted(source["rejected"].items(), key=lambda pair: -pair[1]):
            why = {"source": "", "ok": "", "rejected": number, "reason": reason} | blank
            if example := examples.get((source["name"], reason)):
                why["for example"] = ": ".join(example)
            rows.append(why)
    console.print_rows(rows)


def print_lengths(summary: LengthsSummary) -> None:
    """Facts of the table, and a line for each source."""
    from packidx.estimate.summary import first_rejected

    state = "unchanged" if summary.existed else f"written in {summary.seconds:.1f} s"
    facts = {"samples": console.with_parts(summary.num_samples, summary.methods)}
    facts["tokens"] = format_count(summary.num_tokens)
    facts["rejected"] = console.with_parts(summary.num_rejected, summary.rejected)
    if summary.num_rejected:
        facts["rejected"] += f": see key, reason and detail in {summary.path}/part-*.parquet"
    usable = [each for each in summary.sources if each["num_samples"] > each["num_rejected"]]
    if bare := [each["name"] for each in usable if each["num_media"] == 0]:
        facts["no media"] = f"{', '.join(bare)}: no record has an image, video or sound"
    facts |= verified_facts(summary.compared, summary.methods) if summary.methods else {}
    facts["table"] = f"{summary.path} ({state})"
    if (reused := summary.reused) is not None:
        facts["reused"] = number_of(reused.num_samples, "sample")
        if reused.reason is not None:
            facts["reused"] = f"nothing: {reused.reason}"
        elif reused.counted:
            more = len(reused.counted) - 5
            listed = ", ".join(reused.counted[:5])
            listed += f" and {more:,} more (--json names them)" if more > 0 else ""
            facts["counted"] = f"{number_of(reused.num_counted, 'sample')} of {listed}"
    if summary.resumed_parts:
        facts["resumed"] = f"{summary.resumed_parts} of {summary.num_parts} parts were done before"
    console.print_facts("Lengths", facts)
    kinds = [(each["name"], reason) for each in summary.sources for reason in each["rejected"]]
    print_sources(summary.sources, first_rejected(summary.path, kinds) if kinds else {})


def untrained_warnings(summary: LengthsSummary) -> list[str]:
    """A sentence for every source without a label token."""
    from packidx.index.described import without_labels

    usable = {
        source["name"]: source["num_samples"] - source["num_rejected"]
        for source in summary.sources
        if source["num_label_tokens"] == 0
    }
    return [without_labels(name, number) for name, number in usable.items() if number]


def print_hints(summary: LengthsSummary, options: Mapping[str, Any]) -> None:
    """Warnings and hints on stderr, once the table is written with `options` of `estimate_lengths`.
    Raise a SourceError if too much of a source is rejected."""
    from packidx.estimate.summary import check_rejected, over_limit, read_limit, rejection_warnings

    console.print_warnings(summary.warnings)
    if inexact := sum(number for name, number in summary.methods.items() if name != "exact"):
        text = f"{inexact:,} of {summary.num_samples:,} lengths are not exact (see column method)"
        if options.get("processor") is None and options.get("encode") is None:
            text += ": no processor is named, so packs will need a margin"
        console.print_warnings([text])
    console.print_warnings(untrained_warnings(summary))
    if missing := summary.rejected.get("missing_media"):
        root = options.get("media_root")
        folder = f"in {root}" if root else "beside its shard, or in the media root of its mix"
        console.print_line(
            f"hint: media of {number_of(missing, 'record')} do not exist. Each path was looked for"
            f" {folder}; --media-root DIR names another folder.",
            err=True,
        )
    if not summary.rejected.keys().isdisjoint(("no_messages", "unknown_role")):
        console.print_line("hint: docs/data.md lists layouts, and how to name columns.", err=True)
    share = read_limit(options.get("max_rejected"))
    over = over_limit(summary.sources, share)
    others = [source for source in summary.sources if source not in over]
    console.print_warnings(rejection_warnings(others))
    check_rejected(summary.sources, share, summary.path)
