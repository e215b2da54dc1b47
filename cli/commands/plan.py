"""`packidx plan`: lengths in, a snapshot out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
import cloup

from packidx.errors import FormatError
from packidx.inspect.facts import result_facts
from packidx.plan.options import DEFAULTS, GROUPS, OPTIONS, STRATEGIES, TYPES, command_line, to_flag

from ..options import (
    Decorator,
    combine_options,
    json_option,
    option,
    option_group,
    quiet_option,
    split_mix,
)
from ..show import console

if TYPE_CHECKING:
    from packidx.plan import PlanSummary


def with_option(name: str) -> Decorator:
    """The option for a field of `PlanOptions`."""
    said, declared = OPTIONS[name], TYPES[name]
    kinds = get_args(declared) or (declared,)
    shown, default = said.shown_default, DEFAULTS[name]
    if shown is None and isinstance(default, str | int) and default is not False:
        shown = str(default)
    settings: dict[str, Any] = {"help": said.help + (f"  [default: {shown}]" if shown else "")}
    if bool in kinds:
        settings |= {"is_flag": True, "default": None}
    else:
        # A value that may be a word or a number is read by the option's own check.
        settings |= {"metavar": said.metavar, "multiple": get_origin(declared) is tuple}
        words = STRATEGIES if name == "strategy" else said.choices
        settings["shell_complete"] = lambda context, parameter, begun: [
            word for word in words if word.startswith(begun)
        ]
        settings["type"] = str if str in kinds else kinds[0]
    return click.option(f"--{to_flag(name)}", **settings)


_EXAMPLES = {
    "what to pack": "--capacity 8192 --on-long split --mix photos=2 --holdout 0.01",
    "what may share a pack": "--max-images 16 --group-by media_type",
    "room in a pack": "--align 8 --reserve 64",
    "order": "--global-batch 512 --micro-steps 8 --cost qwen2.5-vl-7b",
    "scale": "--window 64 --workers 8",
}


def _plan_options() -> Iterator[Decorator]:
    """Yield the options of a plan, a group at a time."""
    workers = option(
        "--workers N|ray",
        "Processes that plan windows, or ray: tasks of the cluster that RAY_ADDRESS names, or else "
        "of Ray on this machine.  [default: one]",
    )
    for name, example in _EXAMPLES.items():
        options = [with_option(field) for field in GROUPS[name]]
        yield option_group(name, example, *options, *([workers] if name == "scale" else []))


@cloup.command()
@click.argument("lengths", required=False)
@combine_options(*_plan_options())
@option_group(
    "going on from a plan",
    "-o index/ --continue state.json",
    {
        "--continue resume STATE.json": "Plan what training has not consumed yet at this state of "
        "its sampler, which names its snapshot; the options of that snapshot hold unless others "
        "are given."
    },
)
@option_group(
    "options of a file",
    "--config recipe.yaml",
    {
        "--config FILE": "A recipe of NeMo Automodel; its `packed_sequence:` is read. Options "
        "given here win."
    },
)
@option_group(
    "output",
    "-o index/ --json",
    {
        "-o --output DIR": "Folder of the index.",
        "--dry-run": "Plan, print the result, and write nothing.",
    },
    json_option,
    quiet_option,
)
def plan(
    lengths: str | None,
    output: str | None,
    config: str | None,
    resume: str | None,
    workers: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Assign every sample of LENGTHS to a pack and publish the plan in an index.

    LENGTHS is a table that `packidx estimate` wrote, or any Parquet with a column `length`.
    """
    from ..startup import keep_freed_memory, spare_pandas

    spare_pandas()
    keep_freed_memory()
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "mix" in given:
        given["mix"] = split_mix(given["mix"])
    if config is not None:
        from packidx.plan.config import read_config

        stated, notes = read_config(config)
        given = {**stated, **given}
        line = command_line(lengths or "LENGTHS", output or "INDEX", given)
        for note in (*notes, f"{config} is the same as {line}"):
            console.print_line(f"note: {note}", err=True)
    from packidx.index import open_index
    from packidx.index.described import describe_waste
    from packidx.index.order import State
    from packidx.plan import PlanOptions, plan_packs, preview_plan

    if dry_run and resume:
        raise click.UsageError("--dry-run and --continue cannot be combined.")
    if output is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if resume is not None:
        try:
            with open(resume, "rb") as file:
                state = json.load(file)
        except (ValueError, RecursionError) as error:
            how = "save json.dumps(sampler.state_at(step))"
            raise FormatError(f"state {resume} is not JSON ({error}): {how}") from None
        index = open_index(f"{output}@{State.read(state).snapshot_id}")
        lengths, given = lengths or index.snapshot.lengths.uri, given | {"resume": (index, state)}
    if lengths is None:
        raise click.UsageError("Missing argument 'LENGTHS'.")
    if resume is None:
        if "capacity" not in given:
            raise click.UsageError("Missing option '--capacity'.")
        given = {"options": PlanOptions(**given)}
    planners = _parse_workers(workers)
    if output is None or dry_run:
        with console.show_status(quiet) as doing:
            tried = preview_plan(lengths, given["options"], **planners, progress=doing)
        if as_json:
            console.print_json({"capacity": tried.options.capacity} | tried.result.to_json())
        else:
            console.print_facts("Plan, not written", result_facts(tried))
        return
    with console.show_status(quiet) as doing:
        summary = plan_packs(lengths, output, **given, **planners, progress=doing)
    warnings = describe_waste(summary.snapshot)
    if as_json:
        facts = {"existed": summary.existed, "seconds": summary.seconds, "warnings": warnings}
        console.print_json({**summary.manifest, **facts})
    else:
        print_plan(summary)
    console.print_warnings(warnings)
    snapshot = summary.snapshot
    if snapshot.options.excluded and "excluded" not in snapshot.result.dropped:
        console.print_line(f"note: none of the samples to exclude is in {lengths}", err=True)


def _parse_workers(workers: str | None) -> dict[str, Any]:
    """Return who plans the windows, as arguments of `plan_packs`."""
    if workers == "ray":
        return {"engine": "ray"}
    if workers is not None and not (workers.isascii() and workers.isdigit() and int(workers)):
        raise click.BadParameter(
            f"{workers!r} is no number above 0, nor ray", param_hint="--workers"
        )
    return {"workers": None if workers is None else int(workers)}


def print_plan(summary: PlanSummary) -> None:
    """Facts of the plan, where it lies, and a line to type."""
    from packidx.index import open_index
    from packidx.inspect.verdict import without_media

    output, ident = summary.path, summary.snapshot_id
    facts = result_facts(summary.snapshot)
    if summary.existed:
        for name in ("verified", "not verified"):  # the lengths may have been compared since
            facts.pop(name, None)
    seconds = f"written in {summary.seconds:.1f} s"
    if idle := without_media(open_index(f"{output}@{ident}")):
        facts["no media"] = idle
    state = "exists already, HEAD points at it" if summary.existed else seconds
    facts["index"] = f"{output}@{ident[:12]} ({state})"
    query = "SELECT num_samples, count(*) AS packs FROM packs GROUP BY 1 ORDER BY 1"
    facts["try"] = f'packidx sql {shlex.quote(output)} "{query}"'
    console.print_facts("Plan", facts)
