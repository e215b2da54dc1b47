"""`packidx diff`: what two plans differ in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..options import json_option, quiet_option, root_option
from ..show.console import (
    count,
    number_of,
    percent,
    print_facts,
    print_json,
    print_table,
    say,
    shortened,
    status,
    visible,
)

if TYPE_CHECKING:
    from packidx.inspect.diff import Both, Example, PlanDiff, SampleDiff, SourceDiff


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Samples of each kind that are named.",
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the plans differ, as git diff has.")
@root_option
@quiet_option
@json_option
def diff(
    a: str,
    b: str,
    examples: int,
    exit_code: bool,
    roots: dict[str, str],
    quiet: bool,
    as_json: bool,
) -> None:
    """Show what plan B differs in from plan A, each an INDEX or INDEX@ID.

    \b
    packidx diff index/@84b471c9198f index/

    A sample has moved if, of the samples that both plans pack, it shares its packs with others than
    before. Samples are matched by id where both plans are of the same lengths; else by source and
    key, where these are unique; else by row in shards of the same content.
    """
    from dataclasses import asdict

    from packidx.index import open_index
    from packidx.inspect.diff import diff as compare

    one, two = open_index(a, roots), open_index(b, roots)
    with status(quiet) as doing:
        told = compare(one, two, examples=examples, progress=doing)
    print_json(asdict(told)) if as_json else print_diff(told)
    if exit_code and not told.same:
        raise click.exceptions.Exit(1)


_ABSENT = "absent"
_VALUE = 36  # letters of an option's value or of a name
_COUNTS = {
    "num_samples_in": "samples in",
    "num_samples": "samples packed",
    "num_packs": "packs",
    "num_pieces": "places of samples",
    "num_tokens": "tokens packed",
    "num_tokens_lost": "tokens lost",
    "num_tokens_cut": "tokens cut off",
    "lower_bound": "lower bound",
    "gap": "gap, packs",
    "packs_per_step": "packs per step",
}
_REASONS = {_ABSENT: "not in its lengths"}


def print_diff(told: PlanDiff) -> None:
    """All that differs, most important first."""
    names = [f"{side.path}@{side.snapshot_id[:12]}" for side in (told.a, told.b)]
    if told.same:
        say(f"the same plan: {names[0]} and {names[1]}")
        return
    print_facts("Plans", {"A": names[0], "B": names[1]})
    _print_values("option", told.options)
    _print_values("lengths", told.lengths)
    _print_numbers(told)
    _print_sources(told.sources)
    if told.samples is None:
        say(
            "samples are not compared: the lengths differ, and neither unique keys nor shards say "
            "which sample of A is which of B"
        )
        return
    _print_samples(told.samples)


def _print_values(what: str, differ: Mapping[str, Both]) -> None:
    rows = [[name, _value(name, both.a), _value(name, both.b)] for name, both in differ.items()]
    if rows:
        print_table([what, "A", "B"], rows, right=3)


def _value(name: str, value: Any) -> str:
    if value is None or value == []:
        return "–"
    if name == "continues":
        last = value[-1]
        return f"@{last['snapshot_id'][:12]} after {number_of(last['position'], 'pack')}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(visible(text), _VALUE)


def _print_numbers(told: PlanDiff) -> None:
    rows = [[words, *_numbers(told.counts[name])] for name, words in _COUNTS.items()]
    rows += [[f"dropped: {why}", *_numbers(both)] for why, both in told.dropped.items()]
    fill, cost = told.counts["fill"], told.cost
    rows.append(["fill", percent(fill.a), percent(fill.b), _points(fill)])
    rows.append(["cost of an epoch", "100.0 %", *([_ratio(cost)] * 2)])
    if cost.a:
        rows[-1][-1] = f"{100 * (cost.b / cost.a - 1):+.1f} %"
    for ranks, share in told.useful.items():
        name = f"useful time, {ranks} ranks"
        rows.append([name, percent(share.a), percent(share.b), _points(share)])
    print_table(["plan", "A", "B", "change"], [row for row in rows if row], right=1)


def _numbers(both: Both) -> list[str]:
    change = "–"
    if both.a is not None and both.b is not None:
        change = f"{both.b - both.a:+,}" if both.a != both.b else ""
    return [count(both.a), count(both.b), change]


def _ratio(both: Both) -> str:
    return percent(both.b / both.a, 1) if both.a else "–"


def _points(share: Both) -> str:
    """The difference of two shares, in percentage points."""
    if share.a is None or share.b is None:
        return "–"
    points = f"{100 * (share.b - share.a):+.2f}"
    return "" if float(points) == 0 else points


def _print_sources(sources: Mapping[str, SourceDiff]) -> None:
    rows = []
    for name, each in sources.items():
        samples, share = each.samples, each.share
        rows.append(
            [
                shortened(visible(name or "–"), _VALUE),
                *_numbers(samples),
                percent(share.a, 1),
                percent(share.b, 1),
            ]
        )
    if len(rows) > 1:
        header = ["source", "samples in A", "in B", "change", "tokens in A", "in B"]
        print_table(header, rows, right=1)


def _print_samples(told: SampleDiff) -> None:
    share = percent(told.moved / told.in_both, 1) if told.in_both else "–"
    facts = {
        "in both": f"{number_of(told.in_both, 'sample')}, matched by {told.matched_by}",
        "gained": _with_reasons(told.gained, told.gained_from, "in A"),
        "lost": _with_reasons(told.lost, told.lost_to, "in B"),
        "moved": f"{count(told.moved)} ({share}) share their packs with others than before",
    }
    if told.companions_kept is not None:
        kept = percent(told.companions_kept, 1)
        facts["together"] = f"{kept} of the pairs that share a pack in A do in B"
    facts["tokens"] = f"{number_of(told.tokens_differ, 'sample')} with another number of them"
    print_facts("Samples", facts)
    examples = told.examples
    kinds = {
        "gained": (examples.gained, "in A", "in B"),
        "lost": (examples.lost, "in A", "in B"),
        "moved": (examples.moved, "pack in A", "pack in B"),
        "other tokens": (examples.tokens_differ, "tokens in A", "in B"),
    }
    for kind, (listed, *names) in kinds.items():
        _print_examples(kind, listed, names)


def _with_reasons(number: int, reasons: Mapping[str, int], where: str) -> str:
    listed = ", ".join(f"{n:,} {_REASONS.get(why, why)}" for why, n in reasons.items())
    return count(number) + (f" ({where}: {listed})" if listed else "")


def _print_examples(kind: str, listed: Sequence[Example], names: Sequence[str]) -> None:
    rows = []
    for example in listed:
        ident = example.sample_id.a if example.sample_id.a is not None else example.sample_id.b
        source, key = (visible(word or "–") for word in (example.source, example.key))
        cells = (_REASONS.get(value, str(value)) for value in (example.a, example.b))
        rows.append([str(ident), shortened(source, _VALUE // 2), shortened(key, _VALUE), *cells])
    if rows:
        print_table([kind, "source", "key", *names], rows, right=3)
