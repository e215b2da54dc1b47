"""`packidx trace`: the samples of a step, and the steps of a sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import NotFoundInIndex

from ..grouped import Group, GroupedCommand
from ..options import json_option, quiet_option, read_state, root_option
from ..show.console import (
    count,
    format_table,
    number_of,
    print_facts,
    print_json,
    print_table,
    print_text,
    say,
    shortened,
    status,
    terminal_width,
    visible,
)

if TYPE_CHECKING:
    from packidx.index import Index
    from packidx.inspect.trace import (
        Ancestor,
        Place,
        SampleTrace,
        SampleTraces,
        StepTrace,
        TracedPack,
        TracedSample,
    )

_NUMBER = click.IntRange(min=0)
_POSITIVE = click.IntRange(min=1)


_GROUPS = (
    Group("a step", "--step 120 --rank 3 --world-size 8", ("step", "rank", "world_size")),
    Group("a sample", "--key photo-17 --source photos", ("key", "source", "sample_id")),
    Group(
        "how training reads",
        "--global-batch 512 --seed 1 --epoch 2",
        ("global_batch", "seed", "epoch", "state", "roots"),
    ),
    Group("output", "--json", ("as_json", "quiet")),
)


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("index")
@click.option("--step", type=_NUMBER, metavar="S", help="Tell what optimizer step S trains on.")
@click.option("--key", metavar="K", help="Tell where the samples of this key are.")
@click.option("--sample-id", type=_NUMBER, metavar="N", help="Tell where sample N is.")
@click.option("--source", metavar="NAME", help="With --key: the source, where several have it.")
@click.option("--rank", type=_NUMBER, metavar="R", help="With --step: the packs of one rank.")
@click.option("--world-size", type=_POSITIVE, metavar="W", help="Data-parallel ranks.")
@click.option(
    "--global-batch",
    type=_POSITIVE,
    metavar="N",
    help="Packs per optimizer step, as PackSampler was given.  [default: what was planned for]",
)
@click.option(
    "--epoch", type=_NUMBER, metavar="E", help="Epoch.  [default: 0, of a sample all planned apart]"
)
@click.option("--seed", type=_NUMBER, metavar="N", help="Seed of PackSampler.  [default: 0]")
@click.option(
    "--state",
    metavar="FILE",
    help="A sampler's state as JSON: gives seed, epoch and global batch, and tells what training "
    "has had by then.",
)
@root_option
@quiet_option
@json_option()
def trace(
    index: str,
    step: int | None,
    key: str | None,
    sample_id: int | None,
    source: str | None,
    rank: int | None,
    world_size: int | None,
    state: str | None,
    roots: dict[str, str],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell which samples a step of INDEX or INDEX@ID trains on, or which steps train on a sample.

    \b
    packidx trace index/ --step 120 --rank 3 --world-size 8
    packidx trace index/ --key photo-17

    Steps are counted from 0 in their epoch. What a plan goes on from (plan --continue) is looked
    through, too.
    """
    from dataclasses import asdict

    from packidx.index import open_index
    from packidx.inspect.trace import trace_samples, trace_step

    if [step, key, sample_id].count(None) != 2:
        raise click.UsageError("Give one of --step S, --key K and --sample-id N.")
    if rank is not None and (step is None or world_size is None):
        raise click.UsageError("--rank goes with --step and --world-size.")
    if source is not None and key is None:
        raise click.UsageError("--source goes with --key.")
    opened = open_index(index, roots)
    options |= {"world_size": world_size, "state": None if state is None else read_state(state)}
    if step is not None:
        traced = trace_step(opened, step, rank=rank, **options)
        print_json(asdict(traced)) if as_json else print_step(traced)
        return
    with status(quiet) as doing:
        doing("looking through the samples")
        found = trace_samples(opened, key=key, sample_id=sample_id, source=source, **options)
    if as_json:
        print_json(asdict(found))
    elif found.samples:
        print_samples(found)
    if not found.samples:
        raise NotFoundInIndex(_absent(found, opened))


def _absent(found: SampleTraces, index: Index) -> str:
    """That no sample is called so."""
    what = f"sample {found.sample_id}" if found.key is None else f"key {found.key!r:.200}"
    of_source = "" if found.source is None else f" in source {found.source}"
    number = number_of(index.snapshot.lengths.num_samples, "sample")
    return (
        f"{index.path}@{index.id[:12]} has no {what}{of_source}: none of its {number}, packed or "
        "dropped, has it"
    )


_ORIGINS = {"given": "as given", "state": "the state's", "plan": "the plan's"}
_LETTERS = 16  # of a name that are shown


def print_step(traced: StepTrace) -> None:
    """What a step trains on, a line for each sample."""
    of_rank = "" if traced.rank is None else f", rank {traced.rank} of {traced.world_size}"
    title = f"{traced.path}@{traced.snapshot_id[:12]}, step {traced.step}{of_rank}"
    samples = sum(len(pack.samples) for pack in traced.packs)
    packs = f"{number_of(len(traced.packs), 'pack')}, {number_of(samples, 'sample')}"
    facts = {
        "epoch": f"{traced.epoch}, of {number_of(traced.num_steps, 'step')}",
        "seed": str(traced.seed),
        "global batch": _global_batch(traced.global_batch, traced.global_batch_from),
        "trained on": f"{packs}, {number_of(sum(p.length for p in traced.packs), 'token')}",
    }
    if traced.consumed is not None:
        facts["state"] = "this step is done" if traced.consumed else "this step is not done yet"
    if traced.ancestors:
        facts["before"] = (
            f"{number_of(traced.steps_before, 'step')} on {_names(traced.ancestors)}, so this is "
            f"step {traced.steps_before + traced.step} of what is continued"
        )
    print_facts(title, facts)
    _say_missing(traced.ancestors)
    is_dealt = traced.world_size is not None
    header = ["micro-step", "rank"] if is_dealt else ["place"]
    header += ["pack", "position", "sample", "tokens", "source", "key"]
    rows = [row for pack in traced.packs for row in _pack_rows(pack, is_dealt)]
    is_number = [name not in ("source", "key") for name in header]
    print_text(format_table(header, rows, is_number, terminal_width()))


def _pack_rows(pack: TracedPack, is_dealt: bool) -> Iterable[list[str]]:
    """A line for each sample; what is the pack's stands in the first one."""
    head = [str(pack.micro_step), str(pack.rank)] if is_dealt else [str(pack.place_in_step)]
    head.append(str(pack.pack_id))
    for sample in pack.samples:
        yield [*head, *_cells(sample)]
        head = [""] * len(head)


def _cells(sample: TracedSample) -> list[str]:
    ident = str(sample.sample_id) + (f" {sample.pair}" if sample.pair else "")
    tokens = count(sample.length)
    if sample.piece or sample.token_start:
        tokens += f" from {count(sample.token_start)}"
    key = _record(sample.shard, sample.row) if sample.key is None else sample.key
    source, key = (visible(name) for name in (sample.source or "–", key))
    shown = [shortened(source, _LETTERS), shortened(key, 2 * _LETTERS)]
    return [str(sample.position), ident, tokens, *shown]


def print_samples(traced: SampleTraces) -> None:
    """Each sample: where it is, or why it is nowhere, and what was trained on before."""
    facts = {"seed": str(traced.seed), "global batch": "unknown: give --global-batch to see steps"}
    if traced.global_batch is not None and traced.global_batch_from is not None:
        facts["global batch"] = _global_batch(traced.global_batch, traced.global_batch_from)
    asked = f"sample {traced.sample_id}" if traced.key is None else f"key {traced.key}"
    print_facts(f"{traced.path}@{traced.snapshot_id[:12]}, {asked}", facts)
    for sample in traced.samples:
        _print_sample(sample, traced.world_size is not None)
    _say_missing(traced.ancestors)


def _print_sample(sample: SampleTrace, is_dealt: bool) -> None:
    source = "" if sample.source is None else f", source {sample.source}"
    key = "" if sample.key is None else f", key {sample.key}"
    pair = "" if sample.pair is None else f", {sample.pair} side of a pair"
    say("")
    say(f"sample {sample.sample_id}{source}{key}{pair}")
    if sample.shard is not None:
        say(f"record {sample.row} of {sample.shard}")
    for before in sample.before:
        say(f"trained on before, in @{before.snapshot_id[:12]}:")
        _print_places(before.places, is_dealt=False)
    if sample.dropped is not None:
        why = sample.dropped.reason
        if sample.dropped.detail is not None:
            why += f": {sample.dropped.detail}"
        say(f"dropped, so in no pack: {why}")
    if sample.places:
        _print_places(sample.places, is_dealt)


def _print_places(places: Sequence[Place], is_dealt: bool) -> None:
    header = ["epoch", "step", "place", *(("micro-step", "rank") if is_dealt else ())]
    header += ["pack", "position", "copy", "piece", "tokens"]
    has_state = any(place.consumed is not None for place in places)
    rows = []
    for place in places:
        step = "left out" if place.left_out else _number(place.step)
        row = [str(place.epoch), step, _number(place.place_in_step)]
        row += [_number(place.micro_step), _number(place.rank)] if is_dealt else []
        row += [str(place.pack_id), str(place.position), str(place.copy), str(place.piece)]
        row.append(f"{place.token_start:,} – {place.token_start + place.length:,}")
        if has_state:
            row.append("yes" if place.consumed else "no")
        rows.append(row)
    print_table([*header, *(("trained on",) if has_state else ())], rows)


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def _global_batch(size: int, origin: str) -> str:
    said = f"{number_of(size, 'pack')}, {_ORIGINS[origin]}"
    if origin == "plan":
        said += "; if PackSampler was given another, give --global-batch"
    return said


def _names(ancestors: Sequence[Ancestor]) -> str:
    return ", ".join(f"@{ancestor.snapshot_id[:12]}" for ancestor in ancestors)


def _say_missing(ancestors: Iterable[Ancestor]) -> None:
    """Which part of the lineage nobody can look into."""
    for ancestor in ancestors:
        if ancestor.missing is not None:
            say(
                f"@{ancestor.snapshot_id[:12]} cannot be read, so what its "
                f"{number_of(ancestor.position, 'trained pack')} held is unknown: "
                f"{ancestor.missing}",
                err=True,
            )


def _record(shard: str | None, row: int | None) -> str:
    if shard is None:
        return "–" if row is None else f"#{row}"
    return f"{os.path.basename(shard)}#{row}"
