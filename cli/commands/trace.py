"""`packidx trace`: the samples of a step, and the steps of a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
import cloup

from packidx.words import format_count

from ..options import json_option, option_group
from ..show import console


@cloup.command()
@click.argument("index")
@option_group(
    "a step",
    "--step 120 --rank 3 --world-size 8",
    {
        "--step S:0": "Show what optimizer step S trains on.",
        "--rank R:0": "With --step: the packs of one rank.",
        "--world-size W:1": "Data-parallel ranks.",
    },
)
@option_group(
    "a sample",
    "--key photo-17",
    {
        "--key K": "Show where the samples with this key are.",
        "--sample-id N:0": "Show where sample N is.",
    },
)
@option_group(
    "how training reads",
    "--global-batch 512 --seed 1 --epoch 2",
    {
        "--global-batch N:1": "Packs per optimizer step, as PackSampler was given.  [default: what "
        "was planned for]",
        "--seed N:0": "Seed of PackSampler.  [default: 0]",
        "--epoch E:0": "Epoch.  [default: 0]",
    },
)
@option_group("output", "--json", json_option)
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
        with console.show_status() as doing:
            doing("searching the samples")
            traced = trace_samples(opened, key=key, sample_id=sample_id, **options)
    if as_json:
        console.print_json(traced)
        return
    known = ("epoch", "num_steps", "seed", "global_batch", "world_size", "rank")
    facts = {name.replace("_", " "): traced.get(name) for name in known}
    what = f"step {step}" if step is not None else f"key {key}" if key else f"sample {sample_id}"
    shown = {name: str(value) for name, value in facts.items() if value is not None}
    console.print_facts(f"{traced['path']}@{traced['snapshot_id'][:12]}, {what}", shown)
    packs = traced.get("packs", ())
    rows = traced.get("places") or [pack | sample for pack in packs for sample in pack["samples"]]
    names = ("epoch", "step", "micro_step", "rank", "pack_id")
    when = [name for name in names if any(row.get(name) is not None for row in rows)]
    console.print_rows([{name: row[name] for name in when} | _to_cells(row) for row in rows])
    for row in traced.get("dropped", ()):
        why = ": ".join(filter(None, (row["reason"], row["detail"])))
        console.print_line(f"sample {row['sample_id']} is in no pack: {why}")


def _to_cells(sample: Mapping[str, Any]) -> dict[str, Any]:
    tokens, key = format_count(sample["length"]), sample["key"]
    if sample["piece"] or sample["token_start"]:
        tokens += f" from {format_count(sample['token_start'])}"
    if key is None and sample["shard"] is not None:
        key = f"{os.path.basename(sample['shard'])}#{sample['row']}"
    cells = {"position": sample["position"], "sample": sample["sample_id"], "tokens": tokens}
    return cells | {"source": sample["source"], "key": key}
