"""`packidx verify`: a snapshot against its own promises and its data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import cloup

from packidx.errors import MissingExtraError, OptionError, VerificationError

from ..options import (
    json_option,
    option,
    option_group,
    quiet_option,
    root_option,
    settings_option,
    trust_option,
)
from ..show import console

if TYPE_CHECKING:
    from packidx.inspect.verify import Check


@cloup.command()
@click.argument("index")
@option_group(
    "what to look at",
    "--sample 64",
    option(
        "--sample num_sampled N",
        "Encode N samples as training does, and compare their lengths.",
        default=0,
    ),
    root_option,
)
@option_group(
    "how the lengths were counted",
    "--processor Qwen/Qwen2.5-VL-7B-Instruct",
    option("--processor DIR_OR_NAME", "The processor that counted the lengths."),
    settings_option("; by default the plan's"),
    trust_option,
    {
        "--encode MODULE:NAME": "The user's own encoder that counted the lengths; NAME() calls NAME"
        " first.",
        "--transform MODULE:NAME": "The transform that the lengths were counted with.",
    },
)
@option_group("output", "--json", json_option, quiet_option)
def verify(index: str, roots: dict[str, str], quiet: bool, as_json: bool, **options: Any) -> None:
    """Check the files, id and shards of INDEX or INDEX@ID; exit 3 if anything is wrong.

    With --processor or --encode also its fingerprint, and with --sample N the lengths of N samples
    encoded for real. Each line says how much was looked at, counted on the way.
    """
    from packidx.index import open_index
    from packidx.inspect.verify import verify_index as run

    asked = {name: options.pop(name) for name in ("num_sampled", "transform")}
    names_encoder = options["processor"] is not None or options["encode"] is not None
    if asked["num_sampled"] < 0:
        raise OptionError(f"--sample is {asked['num_sampled']}: give a number of samples")
    opened = open_index(index, roots)
    if names_encoder:
        from packidx.recipe import encoder_of_plan

        asked["encoder"] = encoder_of_plan(opened, options)
    checks: list[Check] = []
    lacking = None
    with console.show_status(quiet) as doing:
        try:
            for check in run(opened, **asked):
                checks.append(check)
                doing(f"{len(checks)} checks done, {check.name} last")
        except MissingExtraError as error:
            lacking = error
    failed = [check for check in checks if not check.ok]
    if as_json:
        facts = {"snapshot_id": opened.id, "ok": not failed}
        console.print_json(facts | {"checks": list(map(asdict, checks))})
    else:
        marks = {False: "FAILED", True: "ok", None: "-"}
        lines = {f"{marks[c.ok if c.checked else None]:6}  {c.name}": c.detail for c in checks}
        console.print_facts(f"{opened.path}@{opened.id[:12]}", lines)
    if failed:
        names = ", ".join(check.name for check in failed)
        raise VerificationError(f"{opened.path}@{opened.id[:12]} is not as it should be: {names}")
    if lacking is not None:
        raise lacking
