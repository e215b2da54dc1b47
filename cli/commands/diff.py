"""`packidx diff`: what two plans differ in."""

from __future__ import annotations

import click

from ..options import json_option, quiet_option, root_option
from ..show.console import print_json, status


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
@json_option()
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

    from ..show.diff import print_diff

    one, two = open_index(a, roots), open_index(b, roots)
    with status(quiet) as doing:
        told = compare(one, two, examples=examples, progress=doing)
    print_json(asdict(told)) if as_json else print_diff(told)
    if exit_code and not told.same:
        raise click.exceptions.Exit(1)
