"""`packidx diff`: what two plans differ in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from packidx.words import count, number_of, percent

from ..options import json_option, quiet_option, root_option
from ..show.console import cut_left, print_facts, print_json, print_rows, say, status, visible

Row = Mapping[str, Any]


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="How many samples of each kind to name.",
)
@click.option(
    "--exit-code", is_flag=True, help="Exit with status 1 if the plans differ, like git diff."
)
@root_option
@quiet_option
@json_option
def diff(
    a: str, b: str, examples: int, exit_code: bool, roots: Any, quiet: bool, as_json: bool
) -> None:
    """Show what plan B differs in from plan A, each an INDEX or INDEX@ID.

    \b
    packidx diff index/@84b471c9198f index/

    A sample has moved if, of the samples that both plans pack, it shares its packs with others than
    before. Samples are matched by id where both plans are of the same lengths; else by source and
    key, where these are unique.
    """
    from packidx.index import open_index
    from packidx.inspect.diff import diff as compare

    one, two = open_index(a, roots), open_index(b, roots)
    with status(quiet) as doing:
        told = compare(one, two, examples=examples, progress=doing)
    print_json(told) if as_json else print_diff(told)
    if exit_code and not told["same"]:
        raise click.exceptions.Exit(1)


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
_REASONS = {"absent": "not in its lengths"}


def print_diff(told: Row) -> None:
    """All that differs, most important first."""
    names = {
        name.upper(): f"{told[name]['path']}@{told[name]['snapshot_id'][:12]}" for name in "ab"
    }
    if told["same"]:
        say(f"the same plan: {' and '.join(names.values())}")
        return
    print_facts("Plans", names)
    for what in ("options", "lengths"):
        print_rows(
            {what: name, "A": _value(name, both["a"]), "B": _value(name, both["b"])}
            for name, both in told[what].items()
        )
    _print_numbers(told)
    _print_sources(told["sources"])
    if told["samples"] is None:
        say(
            "samples are not compared: the lengths differ, and keys that are not unique do not say "
            "which sample of A is which of B"
        )
        return
    _print_samples(told["samples"])


def _value(name: str, value: Any) -> str:
    if value is None or value == []:
        return "–"
    if name == "continues":
        last = value[-1]
        return f"@{last['snapshot_id'][:12]} after {number_of(last['position'], 'pack')}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut_left(visible(text), _VALUE)


def _print_numbers(told: Row) -> None:
    rows = [_numbers(words, told["counts"][name]) for name, words in _COUNTS.items()]
    rows += [_numbers(f"dropped: {why}", both) for why, both in told["dropped"].items()]
    rows.append(_shares("fill", told["counts"]["fill"]))
    cost, of_b = told["cost"], None
    if cost["a"]:
        of_b = cost["b"] / cost["a"]
    change = None if of_b is None else f"{100 * (of_b - 1):+.1f} %"
    rows.append(_row("cost of an epoch", "100.0 %", of_b and percent(of_b, 1), change))
    for ranks, share in told["useful"].items():
        rows.append(_shares(f"useful time, {ranks} ranks", share))
    print_rows(rows)


def _row(words: str, a: Any, b: Any, change: str | None) -> Row:
    return {"plan": words, "A": a, "B": b, "change": change}


def _numbers(words: str, both: Row) -> Row:
    """A count in each plan, and how much it changes."""
    a, b = both["a"], both["b"]
    change = None if a is None or b is None else f"{b - a:+,}" if a != b else ""
    return _row(words, a, b, change)


def _shares(words: str, both: Row) -> Row:
    """A share in each plan, and how it changes, in percentage points."""
    a, b = both["a"], both["b"]
    points = None if a is None or b is None else f"{100 * (b - a):+.2f}"
    return _row(words, percent(a), percent(b), "" if points in ("+0.00", "-0.00") else points)


def _print_sources(sources: Mapping[str, Row]) -> None:
    if len(sources) > 1:
        print_rows(
            {
                "source": cut_left(visible(name or "–"), _VALUE),
                "samples in A": each["samples"]["a"],
                "samples in B": each["samples"]["b"],
                "tokens in A": percent(each["share"]["a"], 1),
                "tokens in B": percent(each["share"]["b"], 1),
            }
            for name, each in sources.items()
        )


def _print_samples(told: Row) -> None:
    share = percent(told["moved"] / told["in_both"], 1) if told["in_both"] else "–"
    facts = {
        "in both": f"{number_of(told['in_both'], 'sample')}, matched by {told['matched_by']}",
        "gained": _with_reasons(told["gained"], told["gained_from"], "in A"),
        "lost": _with_reasons(told["lost"], told["lost_to"], "in B"),
        "moved": f"{count(told['moved'])} ({share}) share their packs with others than before",
    }
    facts["tokens"] = f"{number_of(told['tokens_differ'], 'sample')} with another number of them"
    print_facts("Samples", facts)
    for kind, (words, in_a, in_b) in _KINDS.items():
        print_rows(
            {
                words: str(_first(each["sample_id"])),
                "source": cut_left(visible(each["source"] or "–"), _VALUE // 2),
                "key": cut_left(visible(each["key"] or "–"), _VALUE),
                in_a: _REASONS.get(each["a"], str(each["a"])),
                in_b: _REASONS.get(each["b"], str(each["b"])),
            }
            for each in told["examples"][kind]
        )


def _first(both: Row) -> Any:
    return both["b"] if both["a"] is None else both["a"]


_KINDS = {
    "gained": ("gained", "in A", "in B"),
    "lost": ("lost", "in A", "in B"),
    "moved": ("moved", "pack in A", "pack in B"),
    "tokens_differ": ("other tokens", "tokens in A", "tokens in B"),
}


def _with_reasons(number: int, reasons: Mapping[str, int], where: str) -> str:
    listed = ", ".join(f"{n:,} {_REASONS.get(why, why)}" for why, n in reasons.items())
    return count(number) + (f" ({where}: {listed})" if listed else "")
