"""A lengths table that was counted, in words, and what is to be known of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..sources import print_columns, print_sources, warn_of_rejected
from .console import (
    count,
    not_read,
    number_of,
    print_facts,
    say,
    taken_from,
    warn,
    with_parts,
)
from .facts import compared_fact

if TYPE_CHECKING:
    from packidx.estimate import LengthsSummary
    from packidx.estimate.again import TakenOver
    from packidx.estimate.summary import Mistaken


def print_lengths(summary: LengthsSummary) -> None:
    """Facts of the table, and a line for each source."""
    state = "unchanged" if summary.existed else f"written in {summary.seconds:.1f} s"
    facts = {"samples": with_parts(summary.num_samples, summary.methods)}
    facts["tokens"] = count(summary.num_tokens)
    facts["rejected"] = with_parts(summary.num_rejected, summary.rejected)
    if summary.num_rejected:
        facts["rejected"] += f": see key, reason and detail in {summary.path}/part-*.parquet"
    facts |= not_read(summary.not_read)
    facts |= taken_from(summary.taken_from)
    if summary.methods and (said := compared_fact(summary.compared, summary.methods)):
        facts["compared"] = said
    facts["table"] = f"{summary.path} ({state})"
    facts |= taken_over_facts(summary.taken_over)
    if summary.resumed_parts:
        facts["resumed"] = f"{summary.resumed_parts} of {summary.num_parts} parts were done before"
    print_facts("Lengths", facts)
    from packidx.lengths.parts import first_rejected

    kinds = [
        (source["name"], reason) for source in summary.sources for reason in source["rejected"]
    ]
    print_sources(summary.sources, first_rejected(summary.path, kinds) if kinds else {})
    if any(source["columns"] for source in summary.sources):
        print_columns(summary.sources)


def untrained_sources(summary: LengthsSummary) -> list[str]:
    """A sentence for every source without a label token."""
    from packidx.index.described import without_labels

    usable = {
        source["name"]: source["num_samples"] - source["num_rejected"]
        for source in summary.sources
        if source["num_label_tokens"] == 0
    }
    return [without_labels(name, number) for name, number in usable.items() if number]


def warnings_of(summary: LengthsSummary) -> list[str]:
    """A sentence for all that is to be known of the table, whoever counted it."""
    parts = [] if summary.taken_over is None else summary.taken_over.damaged
    return [*summary.warnings, *(f"{text}; its rows are counted again" for text in parts)]


def tell(
    summary: LengthsSummary, options: Mapping[str, Any], command: Sequence[str] | None
) -> None:
    """Warnings and hints on stderr, once the table is written.

    Args:
        summary: of the table.
        options: of `estimate_lengths`.
        command: the arguments that were given, None where they are not known.

    Raises:
        SourceError: too much of a source is rejected.
    """
    if summary.discarded_parts:
        removed = "was removed" if summary.discarded_parts == 1 else "were removed"
        parts = number_of(summary.discarded_parts, "finished part")
        say(f"note: {parts} of a run with other settings {removed}", err=True)
    warn(warnings_of(summary))
    if inexact := sum(number for name, number in summary.methods.items() if name != "exact"):
        text = f"{inexact:,} of {summary.num_samples:,} lengths are not exact (see column method)"
        if options.get("processor") is None and options.get("encode") is None:
            text += ": no --processor was given, so packs will need a margin"
        warn([text])
    warn(untrained_sources(summary))
    print_mistaken(summary.mistaken, command, len(summary.sources) == 1)
    warn_of_rejected(summary.sources, options.get("max_rejected"), summary.path)


_NAMED = 5
"""Shards that are named in a line."""


def taken_over_facts(taken: TakenOver | None) -> dict[str, str]:
    """Lines of what was taken over, and what was counted."""
    if taken is None:
        return {}
    if taken.reason is not None:
        return {"taken over": f"nothing: {taken.reason}"}
    samples = number_of(taken.num_samples, "sample")
    facts = {"taken over": f"{samples} of {number_of(taken.num_shards, 'shard')}"}
    if taken.num_counted_shards:
        number = number_of(taken.num_counted, "sample")
        shards = number_of(taken.num_counted_shards, "shard")
        named = taken.counted[:_NAMED]
        more = len(taken.counted) - len(named)
        listed = ", ".join(named) + (f" and {more:,} more (--json names them)" if more else "")
        facts["counted"] = f"{number} of {shards}: {listed}"
    return facts


_SKETCH = (
    "def known(record, rng):  # in mymodule.py; record is as it stands in the file",
    '    turns = [{"role": "user", "content": …}, {"role": "assistant", "content": …}]',
    '    return {"messages": turns, "images": […]}',
)


def print_mistaken(
    sources: Sequence[Mistaken], command: Sequence[str] | None, is_only_one: bool
) -> None:
    """Lines on stderr for each source.

    Args:
        command: the arguments that were given, None where they are not known.
        is_only_one: whether they are about one source.
    """
    for source in sources:
        number = f"{count(source.num_rejected)} of {number_of(source.num_samples, 'record')}"
        say(f"hint: {number} of {source.source} are rejected for their shape.", err=True)
        say(f"  {source.record} holds {source.keys}", err=True)
        if source.nearest is None and 2 * source.num_rejected < source.num_samples:
            say("  The others are read: what do these lack? An empty cell is none.", err=True)
            continue
        if source.nearest is None:
            text = "No layout of docs/data.md fits: mend such records, or let a function make one"
            say(f"  {text} of them:", err=True)
            for line in _SKETCH:
                say(f"      {line}", err=True)
            say("  and then: --transform mymodule:known", err=True)
            continue
        options = shlex.join(source.options)
        if "--pair" in source.options:
            options += " (or rejected, or both)"
        if command is None or not is_only_one or "--pair" in source.options:
            where = "" if is_only_one else ", for this source alone or in its entry of a mix"
            say(f"  It may be {source.nearest}. Add{where}: {options}", err=True)
            say(f"  Then it is read as {source.sample}", err=True)
        else:
            asked = [word for word in command if word not in ("--json", "--quiet", "-q")]
            can_show = "estimate" in asked[:1] and "--processor" in asked
            show = ["--show", "3"] if can_show and "--show" not in asked else []
            line = shlex.join([*asked, *source.options, *show])
            say(f"  It may be {source.nearest}. Is this what you mean?", err=True)
            say(f"      {source.sample}", err=True)
            say("  Then type:", err=True)
            say(f"      packidx {line}", err=True)
