"""`packidx stats`: how good a plan is, or what a lengths table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..options import json_option, quiet_option, ranks_option
from ..show.console import print_json, say, status, warn

if TYPE_CHECKING:
    from packidx.index import Index


@click.command()
@click.argument("index", metavar="INDEX|LENGTHS")
@ranks_option
@click.option(
    "--verbose",
    is_flag=True,
    help="Of a plan: all facts, and tables of its packs, its schedule and its sources.",
)
@quiet_option
@json_option()
def stats(index: str, ranks: tuple[int, ...], verbose: bool, quiet: bool, as_json: bool) -> None:
    """Say how good the plan of INDEX or INDEX@ID is, or what the table LENGTHS holds.

    \b
    packidx stats data/index
    packidx stats data/lengths
    """
    from packidx.errors import NotFoundInIndex, SourceError
    from packidx.index import open_index

    try:
        opened = open_index(index)
    except NotFoundInIndex as absent:
        try:
            _print_lengths(index, as_json)
        except SourceError:
            raise absent from None
        return
    _print_index(opened, ranks, verbose, quiet, as_json)


def _print_lengths(path: str, as_json: bool) -> None:
    from packidx.inspect.stats.lengths import lengths_stats

    from ..show.lengths.stats import print_lengths_stats

    found = lengths_stats(path)
    if as_json:
        print_json(found)
    else:
        print_lengths_stats(found)


def _print_index(
    opened: Index, ranks: tuple[int, ...], verbose: bool, quiet: bool, as_json: bool
) -> None:
    from packidx.index.described import untrained
    from packidx.inspect.stats import RANKS, pack_stats, sample_stats
    from packidx.inspect.verdict import verdict

    from ..show.stats import print_details, print_short, print_verdict

    with status(quiet) as doing:
        packs = pack_stats(opened)
        of_samples = sample_stats(opened, doing, ranks or RANKS)
        sentences = verdict(opened, of_samples)
    warnings = untrained(opened.snapshot)
    if as_json:
        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        manifest = opened.manifest
        told: dict[str, Any] = {"packs": packs, "warnings": warnings, "verdict": sentences}
        print_json({key: manifest.get(key) for key in keys} | told | of_samples)
        return
    say(f"{opened.path}@{opened.id[:12]}")
    print_verdict(sentences)
    if verbose:
        print_details(opened, packs, of_samples)
    else:
        print_short(opened)
    warn(warnings)
