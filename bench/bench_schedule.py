"""A mix of text, images and video: caps that hold together, and what a schedule is worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench_tools import CAPACITY, Int64s, heading, line, ratio
from packidx.index import open_index
from packidx.inspect.stats import ranks_stats, scheduled_costs
from packidx.plan import plan_packs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from vlm_mix import MAX_IMAGES, MAX_VISION_PATCHES, SOURCES, vlm_mix

RANKS = 64
MICRO_STEPS = 8

Mix = dict[str, Int64s]


def write_mix(path: Path, count: int) -> Mix:
    """A bare table of `vlm_mix`, with its counters and sources."""
    mix = vlm_mix(count)
    narrow = {name: pa.array(values) for name, values in mix.items() if name != "source"}
    narrow["source"] = pa.DictionaryArray.from_arrays(
        mix["source"].astype(np.int32), pa.array(SOURCES)
    ).cast(pa.string())
    pq.write_table(pa.table(narrow), path)
    return mix


def bench_caps(folder: Path, table: Path, mix: Mix) -> None:
    """Tokens, images and vision patches at once."""
    caps = {"num_images": MAX_IMAGES, "vision_patches": MAX_VISION_PATCHES}
    count = len(mix["length"])
    heading(
        f"{count:,} samples of text, images and video, at most {MAX_IMAGES} images and "
        f"{MAX_VISION_PATCHES:,} vision patches per pack"
    )
    summary = plan_packs(
        table,
        folder / "caps",
        capacity=CAPACITY,
        max_images=MAX_IMAGES,
        max_vision_patches=MAX_VISION_PATCHES,
    )
    rows = open_index(folder / "caps").samples(["pack_id", "sample_id"])
    pack, item = rows["pack_id"].to_numpy(), rows["sample_id"].to_numpy()
    once = len(item) == count and (np.bincount(item, minlength=count) == 1).all()
    most = {
        name: int(np.bincount(pack, mix[name][item]).max())
        for name in ("length", "num_images", "vision_patches")
    }
    kept = once and all(most[name] <= cap for name, cap in ({"length": CAPACITY} | caps).items())
    found = ", ".join(f"{value:,} {name}" for name, value in most.items())
    line("most of any pack, every sample once", found, "every cap holds", bool(kept))
    result = summary.manifest["result"]
    packs, bound = result["num_packs"], result["lower_bound"]
    over = 100 * (packs / bound - 1)
    strategy = ", ".join(result["strategies"])
    note = f"{over:.2f} % over; {strategy}, {summary.seconds:.1f} s; bound: {result['bound']}"
    ratio("packs / joint bound", packs, bound, "", digits=0, note=note)
    line("packs above the bound", f"{over:.2f} %", "<= 3 %", over <= 3)


def bench_schedule(folder: Path, table: Path, mix: Mix) -> None:
    """How long 64 ranks wait, in two orders."""
    for micro_steps in (MICRO_STEPS, 1):
        batch = RANKS * micro_steps
        index = folder / f"schedule-{micro_steps}"
        plan_packs(table, index, capacity=CAPACITY, global_batch=batch, micro_steps=micro_steps)
        costs = scheduled_costs(open_index(index))
        found = ranks_stats(*costs, batch, (RANKS,))[0]
        heading(
            f"{len(mix['length']):,} samples in {len(costs[0]):,} packs for {RANKS} ranks, "
            f"{micro_steps} micro-step{'s' if micro_steps > 1 else ' (the trade-off)'}: "
            f"{found['steps']:,} steps"
        )
        _show("packidx", found["planned"], micro_steps > 1)
        _show("these packs in random order", found["random"], False)
    index = folder / "knapsack"
    plan_packs(table, index, capacity=CAPACITY, strategy="knapsack")
    found = ranks_stats(*scheduled_costs(open_index(index)), RANKS * MICRO_STEPS, (RANKS,))[0]
    heading(f"packs by NeMo's own rule for {RANKS} ranks, {MICRO_STEPS} micro-steps")
    _show("NeMo's packs in random order", found["random"], False)


def _show(label: str, found: dict[str, Any], is_promised: bool) -> None:
    line(label, f"useful share of both phases as one {_text(found['useful'])}")
    by_phase = found["useful_by_phase"]
    good = not is_promised or (by_phase is not None and by_phase >= 0.99)
    line("    useful share by phase", _text(by_phase), ">= 0.99" if is_promised else "", good)


def _text(value: float | None) -> str:
    return "too few steps" if value is None else f"{value:.4f}"
