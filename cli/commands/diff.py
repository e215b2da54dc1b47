"""`packidx diff`: what two plans differ in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from packidx.words import count, number_of, percent

from ..options import json_option, quiet_option, root_option
from ..show.console import cut_left, print_facts, print_json, print_table, say, status, visible

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
    for what, differ in (("option", told["options"]), ("lengths", told["lengths"])):
        values = [
            [name, *(_value(name, both[side]) for side in "ab")] for name, both in differ.items()
        ]
        if values:
            print_table([what, "A", "B"], values, right=3)
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
    rows = [[words, *_numbers(told["counts"][name])] for name, words in _COUNTS.items()]
    rows += [[f"dropped: {why}", *_numbers(both)] for why, both in told["dropped"].items()]
    rows.append(["fill", *_shares(told["counts"]["fill"])])
    cost = told["cost"]
    ratio, change = "–", "–"
    if cost["a"]:
        of_a = cost["b"] / cost["a"]
        ratio, change = percent(of_a, 1), f"{100 * (of_a - 1):+.1f} %"
    rows.append(["cost of an epoch", "100.0 %", ratio, change])
    for ranks, share in told["useful"].items():
        rows.append([f"useful time, {ranks} ranks", *_shares(share)])
    print_table(["plan", "A", "B", "change"], rows, right=1)


def _numbers(both: Row) -> list[str]:
    """A count in each plan, and how much it changes."""
    a, b = both["a"], both["b"]
    change = "–" if a is None or b is None else f"{b - a:+,}" if a != b else ""
    return [count(a), count(b), change]


def _shares(both: Row) -> list[str]:
    """A share in each plan, and how it changes, in percentage points."""
    a, b = both["a"], both["b"]
    points = "–" if a is None or b is None else f"{100 * (b - a):+.2f}"
    return [percent(a), percent(b), "" if points in ("+0.00", "-0.00") else points]


def _print_sources(sources: Mapping[str, Row]) -> None:
    rows = []
    for name, each in sources.items():
        shares = [percent(each["share"][side], 1) for side in "ab"]
        rows.append([cut_left(visible(name or "–"), _VALUE), *_numbers(each["samples"]), *shares])
    if len(rows) > 1:
        header = ["source", "samples in A", "in B", "change", "tokens in A", "in B"]
        print_table(header, rows, right=1)


def _print_samples(told: Row) -> None:
    share = percent(told["moved"] / told["in_both"], 1) if told["in_both"] else "–"
    facts = {
        "in both": f"{number_of(told['in_both'], 'sample')}, matched by {told['matched_by']}",
        "gained": _with_reasons(told["gained"], told["gained_from"], "in A"),
        "lost": _with_reasons(told["lost"], told["lost_to"], "in B"),
        "moved": f"{count(told['moved'])} ({share}) share their packs with others than before",
    }
    if told["companions_kept"] is not None:
        kept = percent(told["companions_kept"], 1)
        facts["together"] = f"{kept} of the pairs that share a pack in A do in B"
    facts["tokens"] = f"{number_of(told['tokens_differ'], 'sample')} with another number of them"
    print_facts("Samples", facts)
    for kind, (words, *names) in _KINDS.items():
        rows = []
        for example in told["examples"][kind]:
            ids = example["sample_id"]
            source, key = (visible(example[name] or "–") for name in ("source", "key"))
            named = [cut_left(source, _VALUE // 2), cut_left(key, _VALUE)]
            cells = [_REASONS.get(example[side], str(example[side])) for side in "ab"]
            rows.append([str(ids["b"] if ids["a"] is None else ids["a"]), *named, *cells])
        if rows:
            print_table([words, "source", "key", *names], rows, right=3)


_KINDS = {
    "gained": ("gained", "in A", "in B"),
    "lost": ("lost", "in A", "in B"),
    "moved": ("moved", "pack in A", "pack in B"),
    "tokens_differ": ("other tokens", "tokens in A", "in B"),
}


def _with_reasons(number: int, reasons: Mapping[str, int], where: str) -> str:
    listed = ", ".join(f"{n:,} {_REASONS.get(why, why)}" for why, n in reasons.items())
    return count(number) + (f" ({where}: {listed})" if listed else "")
