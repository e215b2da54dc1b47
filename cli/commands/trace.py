"""`packidx trace`: the samples of a step, and the steps of a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
import cloup

from packidx.words import count

from ..options import json_option, number, option, option_group
from ..show.console import print_facts, print_json, print_rows, say, status

Row = Mapping[str, Any]


@cloup.command()
@click.argument("index")
@option_group(
    "a step",
    "--step 120 --rank 3 --world-size 8",
    number("--step", "S", "Show what optimizer step S trains on.", least=0),
    number("--rank", "R", "With --step: the packs of one rank.", least=0),
    number("--world-size", "W", "Data-parallel ranks."),
)
@option_group(
    "a sample",
    "--key photo-17",
    option("--key", "K", "Show where the samples with this key are."),
    number("--sample-id", "N", "Show where sample N is.", least=0),
)
@option_group(
    "how training reads",
    "--global-batch 512 --seed 1 --epoch 2",
    number(
        "--global-batch",
        "N",
        "Packs per optimizer step, as PackSampler was given.  [default: what was planned for]",
    ),
    number("--seed", "N", "Seed of PackSampler.  [default: 0]", least=0),
    number("--epoch", "E", "Epoch.  [default: 0]", least=0),
)
@option_group(
    "output",
    "--json",
    json_option,
)
def trace(
    index: str,
    step: int | None,
    key: str | None,
    sample_id: int | None,
    rank: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell which samples a step of INDEX or INDEX@ID trains on, or which steps train on a sample.

    \b
    packidx trace index/ --step 120 --rank 3 --world-size 8
    packidx trace index/ --key photo-17

    Steps are counted from 0 in their epoch.
    """
    from packidx.index import open_index
    from packidx.inspect.trace import trace_samples, trace_step

    if [step, key, sample_id].count(None) != 2:
        raise click.UsageError("Give one of --step S, --key K and --sample-id N.")
    if rank is not None and (step is None or options["world_size"] is None):
        raise click.UsageError("--rank needs --step and --world-size.")
    opened = open_index(index)
    if step is not None:
        traced = trace_step(opened, step, rank=rank, **options)
    else:
        with status() as doing:
            doing("searching the samples")
            traced = trace_samples(opened, key=key, sample_id=sample_id, **options)
    if as_json:
        print_json(traced)
        return
    known = ("epoch", "num_steps", "seed", "global_batch", "world_size", "rank")
    facts = {name.replace("_", " "): traced.get(name) for name in known}
    what = f"step {step}" if step is not None else f"key {key}" if key else f"sample {sample_id}"
    shown = {name: str(value) for name, value in facts.items() if value is not None}
    print_facts(f"{traced['path']}@{traced['snapshot_id'][:12]}, {what}", shown)
    for pack in traced.get("packs", ()):
        title = ", ".join(f"{n} {pack[n]}" for n in ("micro_step", "rank") if pack[n] is not None)
        say("")
        say(f"pack {pack['pack_id']}{title and ', '}{title}: {count(pack['length'])} tokens")
        print_rows([_cells(sample) for sample in pack["samples"]])
    if places := traced.get("places"):
        say("")
        names = ("epoch", "step", "micro_step", "rank", "pack_id")
        when = [name for name in names if any(place[name] is not None for place in places)]
        print_rows([{n: place[n] for n in when} | _cells(place) for place in places])
    for row in traced.get("dropped", ()):
        why = ": ".join(filter(None, (row["reason"], row["detail"])))
        say(f"sample {row['sample_id']} is in no pack: {why}")


def _cells(sample: Row) -> dict[str, str]:
    tokens = count(sample["length"])
    if sample["piece"] or sample["token_start"]:
        tokens += f" from {count(sample['token_start'])}"
    key = sample["key"]
    if key is None and sample["shard"] is not None:
        key = f"{os.path.basename(sample['shard'])}#{sample['row']}"
    return {
        "position": str(sample["position"]),
        "sample": sample["sample_id"],
        "tokens": tokens,
        "source": sample["source"] or "–",
        "key": key,
    }
