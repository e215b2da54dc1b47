"""What `packidx verify` looked at: a line for each check, then sources and samples that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .console import count, print_marked, print_table, say

if TYPE_CHECKING:
    from packidx.inspect.verify.check import Check, Difference, SourceSeen


def print_verified(title: str, checks: Sequence[Check]) -> None:
    """The checks, and of encoded samples the sources, those that differ first."""
    print_marked(title, [(_mark(check), check.name, check.detail) for check in checks])
    for check in checks:
        if check.sources:
            _print_sources(check.sources)


def _mark(check: Check) -> str:
    if not check.checked:
        return "-"
    return "ok" if check.ok else "FAILED"


def _print_sources(sources: Sequence[SourceSeen]) -> None:
    columns = ["source", "encoded", "differ", "not built", "planned", "built", "largest diff."]
    say("")
    print_table(columns, map(_row, sources), right=1)
    say("planned, built: median tokens of whole samples; largest diff.: built less planned")
    examples = [(seen.source, each) for seen in sources for each in seen.examples]
    if examples:
        say("")
        rows = [
            ("", f"{source}: sample {each.sample_id}", _told(each)) for source, each in examples
        ]
        print_marked("Examples", rows)


def _row(seen: SourceSeen) -> list[str]:
    numbers = (seen.num_encoded, seen.num_different, seen.num_failed)
    medians = (seen.planned_median, seen.materialized_median)
    shown = ["–" if value is None else f"{value:,.0f}" for value in medians]
    return [seen.source, *map(count, numbers), *shown, f"{seen.largest_difference:+,}"]


def _told(example: Difference) -> str:
    key = "" if example.key is None else f"{example.key}: "
    if example.error is not None:
        return f"{key}{example.error}"
    return f"{key}planned {example.planned:,} tokens, built {count(example.materialized)}"
