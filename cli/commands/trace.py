"""`packidx trace`: the samples of a step, and the steps of a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import NotFoundInIndex
from packidx.words import count, number_of

from ..options import (
    OptionGroup,
    grouped_command,
    json_option,
    number,
    option,
    quiet_option,
    read_state,
    root_option,
)
from ..show.console import cut_left, print_facts, print_json, print_rows, say, status, visible

if TYPE_CHECKING:
    from packidx.index import Index

Row = Mapping[str, Any]


@grouped_command(
    click.argument("index"),
    OptionGroup("a step", "--step 120 --rank 3 --world-size 8"),
    number("--step", "S", "Show what optimizer step S trains on.", least=0),
    number("--rank", "R", "With --step: the packs of one rank.", least=0),
    number("--world-size", "W", "Data-parallel ranks."),
    OptionGroup("a sample", "--key photo-17 --source photos"),
    option("--key", "K", "Show where the samples with this key are."),
    option("--source", "NAME", "With --key: the source, where several have it."),
    number("--sample-id", "N", "Show where sample N is.", least=0),
    OptionGroup("how training reads", "--global-batch 512 --seed 1 --epoch 2"),
    number(
        "--global-batch",
        "N",
        "Packs per optimizer step, as PackSampler was given.  [default: what was planned for]",
    ),
    number("--seed", "N", "Seed of PackSampler.  [default: 0]", least=0),
    number("--epoch", "E", "Epoch.  [default: 0]", least=0),
    option(
        "--state",
        "FILE",
        "A sampler's state as JSON: gives seed, epoch and global batch, and tells what training "
        "has had by then.",
    ),
    root_option,
    OptionGroup("output", "--json"),
    json_option,
    quiet_option,
)
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
        print_json(traced) if as_json else print_step(traced)
        return
    with status(quiet) as doing:
        doing("looking through the samples")
        traced = trace_samples(opened, key=key, sample_id=sample_id, source=source, **options)
    if as_json:
        print_json(traced)
    elif traced["samples"]:
        print_pack_samples(traced)
    if not traced["samples"]:
        raise NotFoundInIndex(_absent(traced, opened))


def _absent(traced: Row, index: Index) -> str:
    """That no sample is called so."""
    what = f"key {traced['key']!r:.200}"
    if traced["key"] is None:
        what = f"sample {traced['sample_id']}"
    of_source = "" if traced["source"] is None else f" in source {traced['source']}"
    number = number_of(index.snapshot.lengths.num_samples, "sample")
    return (
        f"{_name(traced)} has no {what}{of_source}: none of its {number}, packed or dropped, has it"
    )


def _name(traced: Row) -> str:
    return f"{traced['path']}@{traced['snapshot_id'][:12]}"


_ORIGINS = {"given": "as given", "state": "the state's", "plan": "the plan's"}
_LETTERS = 16  # of a name that are shown


def print_step(traced: Row) -> None:
    """Print what a step trains on, a line for each sample."""
    rank, packs = traced["rank"], traced["packs"]
    of_rank = "" if rank is None else f", rank {rank} of {traced['world_size']}"
    samples = number_of(sum(len(pack["samples"]) for pack in packs), "sample")
    tokens = number_of(sum(pack["length"] for pack in packs), "token")
    facts = {
        "epoch": f"{traced['epoch']}, of {number_of(traced['num_steps'], 'step')}",
        **_of_run(traced),
        "trained on": f"{number_of(len(packs), 'pack')}, {samples}, {tokens}",
    }
    if traced["consumed"] is not None:
        facts["state"] = "this step is done" if traced["consumed"] else "this step is not done yet"
    if traced["ancestors"]:
        before = traced["steps_before"]
        names = ", ".join(f"@{ancestor['snapshot_id'][:12]}" for ancestor in traced["ancestors"])
        facts["before"] = (
            f"{number_of(before, 'step')} on {names}, so this is step {before + traced['step']} of "
            "what is continued"
        )
    print_facts(f"{_name(traced)}, step {traced['step']}{of_rank}", facts)
    _say_missing(traced)
    head = {"place": "place_in_step"}
    if traced["world_size"] is not None:
        head = {"micro-step": "micro_step", "rank": "rank"}
    rows = []
    for pack in packs:
        own = {words: str(pack[name]) for words, name in (head | {"pack": "pack_id"}).items()}
        for sample in pack["samples"]:
            rows.append(own | _cells(sample))
            own = dict.fromkeys(own, "")  # it stands in the pack's first line
    print_rows(rows)


def _of_run(traced: Row) -> dict[str, str]:
    """The seed and the global batch, and where that is from."""
    said, origin = "unknown: give --global-batch to see steps", traced["global_batch_from"]
    if origin is not None:
        said = f"{number_of(traced['global_batch'], 'pack')}, {_ORIGINS[origin]}"
    if origin == "plan":
        said += "; if PackSampler was given another, give --global-batch"
    return {"seed": str(traced["seed"]), "global batch": said}


def _cells(sample: Row) -> dict[str, str]:
    ident = " ".join(filter(None, (str(sample["sample_id"]), sample["pair"])))
    tokens = count(sample["length"])
    if sample["piece"] or sample["token_start"]:
        tokens += f" from {count(sample['token_start'])}"
    key = sample["key"]
    if key is None:
        key = "–" if sample["row"] is None else f"#{sample['row']}"
        if sample["shard"] is not None:
            key = f"{os.path.basename(sample['shard'])}#{sample['row']}"
    source, key = (visible(name) for name in (sample["source"] or "–", key))
    return {
        "position": str(sample["position"]),
        "sample": ident,
        "tokens": tokens,
        "source": cut_left(source, _LETTERS),
        "key": cut_left(key, 2 * _LETTERS),
    }


def print_pack_samples(traced: Row) -> None:
    """Each sample: where it is, or why it is nowhere, and what was trained on before."""
    key, is_dealt = traced["key"], traced["world_size"] is not None
    asked = f"sample {traced['sample_id']}" if key is None else f"key {key}"
    print_facts(f"{_name(traced)}, {asked}", _of_run(traced))
    for sample in traced["samples"]:
        _print_sample(sample, is_dealt)
    _say_missing(traced)


def _print_sample(sample: Row, is_dealt: bool) -> None:
    named = [f", {name} {sample[name]}" for name in ("source", "key") if sample[name] is not None]
    pair = "" if sample["pair"] is None else f", {sample['pair']} side of a pair"
    say("")
    say(f"sample {sample['sample_id']}{''.join(named)}{pair}")
    if sample["shard"] is not None:
        say(f"record {sample['row']} of {sample['shard']}")
    for before in sample["before"]:
        say(f"trained on before, in @{before['snapshot_id'][:12]}:")
        _print_places(before["places"], is_dealt=False)
    if (dropped := sample["dropped"]) is not None:
        why = ": ".join(filter(None, (dropped["reason"], dropped["detail"])))
        say(f"dropped, so in no pack: {why}")
    if sample["places"]:
        _print_places(sample["places"], is_dealt)


def _print_places(places: Sequence[Row], is_dealt: bool) -> None:
    columns = {"epoch": "epoch", "step": "step", "place": "place_in_step"}
    if is_dealt:
        columns |= {"micro-step": "micro_step", "rank": "rank"}
    columns |= {"pack": "pack_id", "position": "position", "copy": "copy", "piece": "piece"}
    rows = []
    for place in places:
        shown = dict(place, step="left out" if place["left_out"] else place["step"])
        row = {words: shown[name] for words, name in columns.items()}
        row = {words: cell if cell is None else str(cell) for words, cell in row.items()}
        row["tokens"] = f"{place['token_start']:,} – {place['token_start'] + place['length']:,}"
        if place["consumed"] is not None:
            row["trained on"] = "yes" if place["consumed"] else "no"
        rows.append(row)
    print_rows(rows)


def _say_missing(traced: Row) -> None:
    """Say which part of the lineage nobody can look into."""
    for ancestor in traced["ancestors"]:
        if ancestor["missing"] is not None:
            say(
                f"@{ancestor['snapshot_id'][:12]} cannot be read, so what its "
                f"{number_of(ancestor['position'], 'trained pack')} held is unknown: "
                f"{ancestor['missing']}",
                err=True,
            )
