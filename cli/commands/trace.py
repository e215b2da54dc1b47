"""`packidx trace`: the samples of a step, and the steps of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from packidx.errors import NotFoundInIndex

from ..grouped import Group, GroupedCommand
from ..options import json_option, quiet_option, read_state, root_option
from ..show.console import number_of, print_json, status

if TYPE_CHECKING:
    from packidx.index import Index
    from packidx.inspect.trace import SampleTraces

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

    from ..show.trace import print_samples, print_step

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
    """That no sample is called so, and what may be meant."""
    from packidx.inspect.trace import has_keys

    where = f"{index.path}@{index.id[:12]}"
    number = index.snapshot.lengths.num_samples
    looked = f"none of its {number_of(number, 'sample')}, packed or dropped,"
    if found.key is None:
        return f"{where} has no sample {found.sample_id}: {looked} has that id"
    if not has_keys(index):
        return f"{where} has no key {found.key!r:.200}: its samples have no keys: give --sample-id"
    of_source = "" if found.source is None else f" in source {found.source}"
    hint = f"; near it: {', '.join(map(repr, found.near))}" if found.near else ""
    if found.key in found.near:
        return f"{where} has no key {found.key!r:.200}{of_source}, but another source has it"
    return f"{where} has no key {found.key!r:.200}{of_source}: {looked} has it{hint}"
