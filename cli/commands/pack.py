"""`packidx pack`: counted, planned, verified and drawn by one recipe."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import cloup

from packidx.errors import OptionError, VerificationError
from packidx.words import number_of

from ..options import json_option, option_group, quiet_option, split_mix, worker_options
from ..show import console
from ..sources import (
    answer_options,
    how_options,
    max_rejected_option,
    print_hints,
    print_lengths,
    record_options,
    sources_argument,
)
from .plan import with_option

if TYPE_CHECKING:
    from packidx.estimate import LengthsSummary
    from packidx.recipe import PackSummary, Recipe

_PLANNED = ("capacity", "on_long", "mix", "global_batch", "seed")


@cloup.command()
@sources_argument("RECIPE|SOURCE...")
@option_group(
    "what the records look like, and how to count",
    "--processor Qwen/Qwen2.5-VL-7B-Instruct --column messages=dialog",
    how_options,
    record_options,
    max_rejected_option,
    answer_options,
)
@option_group(
    "how to pack",
    "--capacity 8192 --on-long split --mix photos=2",
    *[with_option(name) for name in _PLANNED],
)
@option_group("scale", "--workers 8", worker_options("count and plan"))
@option_group(
    "output",
    "-o packs/",
    {"-o --output DIR": "Folder for lengths, index and report."},
    json_option,
    quiet_option,
)
def pack(
    sources: tuple[str, ...],
    output: str | None,
    workers: int | None,
    engine: str,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Count what changed, plan, verify and draw a report: by a RECIPE, or of SOURCEs.

    \b
    packidx pack recipe.yaml
    packidx pack chats.jsonl --processor Qwen/Qwen2.5-VL-7B-Instruct --capacity 8192 -o packs

    A RECIPE is a YAML file with sources, options of `packidx estimate` and `packidx plan`, and the
    output's folder. SOURCEs are as `packidx estimate` takes them; DIR/recipe.yaml is the recipe
    that they make.
    """
    from ..startup import keep_freed_memory, spare_pandas

    if options["transform"] is None and options["encode"] is None:  # who may want it
        spare_pandas()
    keep_freed_memory()
    recipe, is_file = _make_recipe(sources, output, options)
    from packidx.index.described import describe_waste
    from packidx.recipe import pack_recipe

    with contextlib.ExitStack() as shown:
        shown_status: list[Callable[[str], None]] = []

        def show_counted(summary: LengthsSummary) -> None:
            shown.pop_all().close()  # the bar is gone before anything is said
            if not as_json and not summary.existed:
                print_lengths(summary)
            print_hints(summary, recipe.estimate)
            shown_status.append(shown.enter_context(console.show_status(quiet)))

        made = pack_recipe(
            recipe,
            output,
            workers=workers,
            engine=engine,
            keep_recipe=not is_file,
            progress=shown.enter_context(console.progress_bar(quiet)),
            doing=lambda words: shown_status[-1](words),
            counted=show_counted,
        )
    if as_json:
        names = ("output", "index", "num_sampled", "report")
        stated = {name: getattr(made, name) for name in names}
        stated |= {"lengths": dataclasses.asdict(made.lengths), "plan": made.plan.manifest}
        console.print_json(stated | {"checks": list(map(dataclasses.asdict, made.checks))})
    else:
        _print_pack(made, recipe)
    console.print_warnings(describe_waste(made.plan.snapshot))
    if made.plan.existed and made.plan.snapshot.recipe != recipe.text:
        kept = "was planned before, and keeps the recipe that it was planned by"
        console.print_line(f"note: {made.index} {kept}", err=True)
    failed = [f"{check.name}: {check.detail}" for check in made.checks if not check.ok]
    if failed:
        raise VerificationError(f"{made.index} is not as it should be: {'; '.join(failed)}")


def _make_recipe(
    sources: tuple[str, ...], output: str | None, options: dict[str, Any]
) -> tuple[Recipe, bool]:
    """The recipe in a file, or made of the options, and whether it is a file."""
    from packidx.recipe import recipe_file, recipe_given

    given = {name: value for name, value in options.items() if value not in (None, (), {})}
    if not given["trust_remote_code"]:
        del given["trust_remote_code"]
    if len(sources) == 1 and (recipe := recipe_file(sources[0])) is not None:
        if given:
            name = next(iter(given)).replace("_", "-")
            raise OptionError(f"{sources[0]} is a recipe: write {name} into it")
        return recipe, True
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if "capacity" not in given:
        raise click.UsageError("Missing option '--capacity'.")
    if "mix" in given:
        given["mix"] = split_mix(given["mix"])
    return recipe_given(sources, given, output), False


def _print_pack(made: PackSummary, recipe: Recipe) -> None:
    from packidx.index import open_index
    from packidx.inspect.verdict import plan_verdict

    from .plan import print_plan

    print_plan(made.plan)
    index = open_index(made.index)
    checked = [check for check in made.checks if check.checked]
    good = sum(check.ok for check in checked)
    facts = {"verdict": plan_verdict(index)[0]}
    facts["verified"] = f"{good} of {len(checked)} checks hold"
    if made.num_sampled:
        samples = number_of(made.num_sampled, "sample")
        facts["verified"] += f", {samples} encoded as in training"
    elif made.not_sampled:
        facts["verified"] += f"; no sample was encoded for real: {made.not_sampled}"
    facts["report"] = made.report or "none in a store: packidx report draws one here"
    by = recipe.estimate.get("processor")
    encode = f'"{by}"' if by else "encode"
    facts["train"] = f'packidx.torch.PackedDataset("{made.index}", {encode}), see docs/training.md'
    console.print_facts("Packed", facts)
