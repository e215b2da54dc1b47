"""`packidx plan`: lengths in, a snapshot out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
import cloup

from packidx.errors import FormatError
from packidx.inspect.facts import result_facts
from packidx.plan.options import DEFAULTS, GROUPS, OPTIONS, STRATEGIES, TYPES, command_line, to_flag
from packidx.words import format_percent

from ..options import (
    Decorator,
    combine_options,
    json_option,
    option,
    option_group,
    quiet_option,
    split_mix,
)
from ..show.console import (
    print_facts,
    print_json,
    print_line,
    print_rows,
    print_warnings,
    show_status,
)

if TYPE_CHECKING:
    from packidx.plan import PlanSummary


def with_option(name: str, kind: type | None = None) -> Decorator:
    """The option for a field of `PlanOptions`; `kind` where it is another one than the field's."""
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
        settings["type"] = kind or (str if str in kinds else kinds[0])
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
        # Several capacities are for a dry run.
        options = [
            with_option(field, str if field == "capacity" else None) for field in GROUPS[name]
        ]
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
            print_line(f"note: {note}", err=True)
    from packidx.index import open_index
    from packidx.index.described import describe_waste
    from packidx.index.order import State
    from packidx.plan import PlanOptions, plan_packs, preview_plan

    capacities = _parse_capacities(given.pop("capacity", None), several=dry_run)
    if capacities:
        given["capacity"] = capacities[0]
    if dry_run:
        if resume:
            raise click.UsageError("--dry-run and --continue cannot be combined.")
        if lengths is None:
            raise click.UsageError("Missing argument 'LENGTHS'.")
        if not capacities:
            raise click.UsageError("Missing option '--capacity': one, or several as 4096,8192.")
        each = [PlanOptions(**{**given, "capacity": capacity}) for capacity in capacities]
        with show_status(quiet) as doing:
            tried = [
                preview_plan(lengths, one, **_parse_workers(workers), progress=doing)
                for one in each
            ]
        if as_json:
            print_json([{"capacity": n.options.capacity} | n.result.to_json() for n in tried])
        elif len(tried) == 1:
            print_facts("Plan, not written", result_facts(tried[0]))
        else:
            print_rows(
                {
                    "capacity": capacity,
                    "packs": snapshot.result.num_packs,
                    "fill": format_percent(snapshot.result.fill, 3),
                    "gap": snapshot.result.gap,
                    "dropped": snapshot.result.num_dropped,
                    "tokens lost": snapshot.result.num_tokens_lost,
                    "strategy": ", ".join(snapshot.result.strategies),
                }
                for capacity, snapshot in zip(capacities, tried, strict=True)
            )
        return
    earlier: dict[str, Any] = {}
    if resume is not None:
        if output is None:
            raise click.UsageError("--continue needs -o DIR, the index that was trained on.")
        try:
            with open(resume, "rb") as file:
                state = json.load(file)
        except (ValueError, RecursionError) as error:
            how = "save json.dumps(sampler.state_at(step))"
            raise FormatError(f"state {resume} is not JSON ({error}): {how}") from None
        index = open_index(f"{output}@{State.read(state).snapshot_id}")
        earlier, lengths = {"resume": (index, state)}, lengths or index.snapshot.lengths.uri
    if lengths is None:
        raise click.UsageError("Missing argument 'LENGTHS'.")
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if not earlier:
        if "capacity" not in given:
            raise click.UsageError("Missing option '--capacity'.")
        given = {"options": PlanOptions(**given)}
    with show_status(quiet) as doing:
        summary = plan_packs(
            lengths, output, **earlier, **given, **_parse_workers(workers), progress=doing
        )
    warnings = describe_waste(summary.snapshot)
    if as_json:
        facts = {"existed": summary.existed, "seconds": summary.seconds, "warnings": warnings}
        print_json({**summary.manifest, **facts})
    else:
        print_plan(summary)
    print_warnings(warnings)
    snapshot = summary.snapshot
    if snapshot.options.excluded and "excluded" not in snapshot.result.dropped:
        print_line(f"note: none of the samples that are to be excluded is in {lengths}", err=True)


def _parse_capacities(asked: str | int | None, *, several: bool) -> list[int]:
    """The capacities that are asked for, one unless there may be several."""
    parts = [] if asked is None else str(asked).split(",")
    try:
        if len(parts) < 2 or several:
            return list(map(int, parts))
        what = "an integer (several are for --dry-run)"
    except ValueError:
        what = "an integer, nor several as 4096,8192" if several else "an integer"
    raise click.BadParameter(f"{asked!r} is not {what}", param_hint="'--capacity'")


def _parse_workers(workers: str | None) -> dict[str, Any]:
    """Return who plans the windows, as arguments of `plan_packs`."""
    if workers == "ray":
        return {"engine": "ray"}
    if workers is not None and not (workers.isascii() and workers.isdigit() and int(workers)):
        raise click.BadParameter(
            f"{workers!r} is not a number from 1 on, nor ray", param_hint="'--workers'"
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
    called = sys.argv[0] if os.path.basename(sys.argv[0]) == "packidx" else "packidx"
    program = "packidx" if shutil.which("packidx") else shlex.quote(called)
    facts["try"] = f'{program} sql {shlex.quote(output)} "{query}"'
    print_facts("Plan", facts)
