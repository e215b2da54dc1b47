"""`packidx plan`: lengths in, a snapshot out."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Any

import click


@click.command()
@click.argument("lengths")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder of the index.")
@click.option("--capacity", required=True, type=int, help="Tokens a pack may hold.")
@click.option("--strategy", default="bfd", show_default=True, help="bfd: best-fit-decreasing.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same lengths: same bytes.")
@click.option(
    "--on-long",
    default="drop",
    show_default=True,
    metavar="drop|split|truncate|error",
    help="What becomes of a sample longer than a pack.",
)
@click.option(
    "--margin",
    type=float,
    metavar="X",
    help="Leave this share of each pack free.  [default: 0; 0.02 or 0.1 for inexact lengths, and "
    "what their calibration asks for]",
)
@click.option(
    "--overflow-chance",
    type=float,
    metavar="E",
    help="For lengths with a calibration, in place of a margin: the chance that a pack holds more "
    "than its capacity.  [default: 0.001]",
)
@click.option("--packing-ratio", type=float, metavar="R", help="Plan for R x capacity: 1 - margin.")
@click.option("--shift", is_flag=True, help="Count length - 1: labels are shifted before packing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def plan(lengths: str, output: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Assign every sample of LENGTHS to a pack and publish the plan in an index.

    LENGTHS is a table that `packidx estimate` wrote, or any Parquet with a column `length`.
    """
    from packidx.plan import PlanOptions, plan_packs

    from .console import print_json, status

    with status(quiet) as doing:
        summary = plan_packs(lengths, output, PlanOptions(**options), progress=doing)
    if as_json:
        print_json({**summary.manifest, "existed": summary.existed, "seconds": summary.seconds})
    else:
        _show(summary.manifest, output, summary.existed, summary.seconds)
    if summary.moved:
        old, new = next(iter(summary.moved.items()))
        click.echo(
            f"note: this very plan was made earlier, when {old} stood for {new}; its paths stay as "
            f"they were: read it with --root OLD=NEW or roots={{old: new}}",
            err=True,
        )


def _show(manifest: dict[str, Any], output: str, existed: bool, seconds: float) -> None:
    from .console import print_facts
    from .stats import result_facts

    ident = manifest["snapshot_id"]
    facts = result_facts(manifest)
    if margin := margin_fact(manifest):
        facts["margin"] = margin
    state = "exists already, HEAD points at it" if existed else f"written in {seconds:.1f} s"
    facts["index"] = f"{output}@{ident[:12]} ({state})"
    query = "SELECT num_samples, count(*) AS packs FROM packs GROUP BY 1 ORDER BY 1"
    facts["try"] = f'{_program()} sql {shlex.quote(output)} "{query}"'
    print_facts("Plan", facts)


def margin_fact(manifest: dict[str, Any]) -> str | None:
    """The margin and why; None where packs may be filled."""
    options, lengths = manifest["options"], manifest["lengths"]
    if not options["margin"]:
        return None
    share = f"{100 * options['margin']:.2f} %: packs of at most {options['planned_capacity']:,}"
    found = lengths.get("calibration")
    if found is None:
        return share
    return (
        f"{share}, so that one overflows with a chance below {options['overflow_chance']:g} "
        f"(calibrated on {found['num_samples']:,} samples; source {found['source']} decides)"
    )


def _program() -> str:
    """`packidx` as the user can type it here: with its path if the shell would not find it."""
    called = sys.argv[0]
    if shutil.which("packidx") is None and os.path.basename(called) == "packidx":
        return shlex.quote(called)
    return "packidx"
