"""Options of `packidx plan`, made from `PlanOptions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

# name, type, metavar, help; what a default is, stands in `PlanOptions` alone.
_OPTIONS: list[tuple[str, Any, str | None, str]] = [
    (
        "strategy",
        str,
        "NAME",
        "auto (the fewest packs, well mixed), bfd, balanced, lp; or another "
        "packer's rule, to compare: knapsack, first-fit, next-fit, window:N.  [default: auto]",
    ),
    ("seed", int, "N", "Same seed, same lengths: same bytes.  [default: 0]"),
    (
        "on-long",
        str,
        "drop|split|truncate|error",
        "What becomes of a sample longer than a pack.  [default: drop]",
    ),
    (
        "margin",
        float,
        "X",
        "Leave this share of each pack free.  [default: 0; 0.02 or 0.1 for "
        "inexact lengths, and what their calibration asks for]",
    ),
    (
        "overflow-chance",
        float,
        "E",
        "For lengths with a calibration, in place of a margin: the "
        "chance that a pack holds more than its capacity.  [default: 0.001]",
    ),
    ("packing-ratio", float, "R", "Plan for R x capacity: 1 - margin."),
    ("max-images", int, "N", "Images that a pack may hold."),
    ("max-vision-patches", int, "N", "Vision patches that a pack may hold."),
    ("max-samples", int, "N", "Samples that a pack may hold."),
    ("group-by", str, "source|media_type", "Only samples of one kind share a pack."),
    ("align", int, "N", "Every sample takes a multiple of N tokens (context parallelism: 2 x cp)."),
    ("pad-pack-to", int, "N", "Every pack is padded to a multiple of N tokens (pipeline, FP8)."),
    ("reserve", int, "N", "Keep N tokens of every pack free for what the reader adds."),
    ("max-packs", int, "N", "Keep N packs, drawn by the seed; the rest is dropped."),
    (
        "mix-by",
        str,
        "repeats|samples|tokens|label_tokens",
        "What weights say: how often a sample is seen, or shares of the epoch.  [default: repeats]",
    ),
    ("holdout", str, "SHARE", "Keep this share of the samples, by a hash of their key, out."),
    ("side", str, "train|holdout", "Plan the samples that are not held out, or those that are."),
    ("exclude", str, "FILE", "Parquet with the `key` or `sample_id` of samples to leave out."),
    ("epochs", int, "N", "So many variants of the epoch, each composed anew.  [default: 1]"),
    (
        "schedule",
        str,
        "stratified|cost|random",
        "Order of the packs: micro-steps of equal cost "
        "and steps of the whole mix; micro-steps of equal cost; any.  [default: stratified]",
    ),
    (
        "global-batch",
        int,
        "N",
        "Packs per optimizer step, all ranks and accumulation together, "
        "for the schedule.  [default: 512, fewer for small plans]",
    ),
    ("micro-steps", int, "N", "Parts of equal cost in a global batch.  [default: 8]"),
    (
        "cost",
        str,
        "MODEL",
        "What packs cost: a preset, a model's config.json, or weight=value,… "
        "[default: qwen2.5-vl-7b]",
    ),
    (
        "window-shards",
        int,
        "N",
        "Plan N shards at a time: the samples of a pack lie near each "
        "other, and more can be appended.",
    ),
    ("window-samples", int, "N", "The same in samples, of whole shards where there are any."),
    ("memory-limit", str, "SIZE", "Plan in windows what takes more.  [default: 4GB]"),
    ("aggregate", str, "polars|duckdb", "Who sums lengths up; the plan is the same."),
]


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, kind, metavar, words in reversed(_OPTIONS):
        command = click.option(f"--{name}", type=kind, metavar=metavar, help=words)(command)
    return command
