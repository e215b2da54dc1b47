"""Planning: lengths in, an immutable snapshot of a pack index out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.errors import SourceError
from packidx.index.snapshot import publish
from packidx.plan.bounds import lower_bound
from packidx.plan.histogram import Histogram
from packidx.plan.items import Items, make_items
from packidx.plan.lengths import Lengths, read_lengths
from packidx.plan.margin import Margin, calibrated_margin
from packidx.plan.options import PlanOptions, ResolvedOptions
from packidx.plan.place import place
from packidx.plan.tables import packs_table, samples_table

__all__ = ["PlanOptions", "PlanSummary", "plan_packs"]

# Packs that an epoch shuffles among themselves before it turns to the next block: near in the
# epoch is then near in the file, so that a decoded row group serves many packs.
SCHEDULE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a call of `plan_packs` did.

    Attributes:
        snapshot_id: id of the snapshot, which HEAD now names.
        path: folder of the index.
        existed: the same plan was there already; nothing was written but HEAD.
        moved: ``{old: new}`` paths that the snapshot, planned earlier, has otherwise.
        manifest: the snapshot's manifest.
        seconds: wall time.
    """

    snapshot_id: str
    path: str
    existed: bool
    moved: dict[str, str]
    manifest: dict[str, Any]
    seconds: float


def plan_packs(
    lengths: str | Path,
    output: str | Path,
    options: PlanOptions | None = None,
    *,
    progress: Callable[[str], None] = lambda doing: None,
    **changes: Any,
) -> PlanSummary:
    """Assign every sample of `lengths` to a pack and publish the plan as a snapshot of `output`.

    Args:
        lengths: a lengths table, or any Parquet file, folder or glob with a `length` column.
        output: folder of the index; made if it is not there.
        options: what to plan.
        changes: fields of `PlanOptions`, instead of `options` (``capacity=8192, seed=1``) or to
            change some of them.
        progress: told what is being done, a few words at a time.

    Raises:
        OptionError: an option has no meaning for these lengths.
        SourceError, FormatError, MismatchError: `lengths` is not usable.
    """
    begin = time.perf_counter()
    asked = PlanOptions(**changes) if options is None else replace(options, **changes)
    progress("reading lengths")
    table = read_lengths(str(lengths))
    margin = _margin(table, asked, progress)
    resolved = asked.resolve(table.weakest_method, margin)
    items, dropped = make_items(table, resolved)
    if not len(items.row):
        raise SourceError(
            f"{lengths} holds no usable sample ({dropped.num_rows} rows): nothing to pack"
        )
    progress(f"packing {len(items.row):,} samples")
    placement = place(items.length, resolved.planned_capacity, resolved.seed)
    tables = {
        "packs": packs_table(table, items, placement),
        "samples": samples_table(table, items, placement),
        "dropped": dropped,
    }
    histogram = Histogram.of(items.length)
    result = _result(tables, lower_bound(histogram, resolved.planned_capacity), resolved)
    result["num_tokens_cut"] = _tokens_cut(table, items, result["num_tokens"], resolved)
    body = {
        "lengths": _lengths(table, margin),
        "options": resolved.to_json(),
        "result": result,
        "sources": _sources(table, tables["dropped"]),
        "shards": (table.manifest or {}).get("shards", []),
    }
    progress(f"writing {placement.num_packs:,} packs")
    manifest, existed = publish(Path(output), body, tables)
    return PlanSummary(
        snapshot_id=manifest["snapshot_id"],
        path=str(output),
        existed=existed,
        moved=_moved(manifest, body),
        manifest=manifest,
        seconds=time.perf_counter() - begin,
    )


def _margin(table: Lengths, asked: PlanOptions, progress: Callable[[str], None]) -> Margin | None:
    """The margin that the lengths' calibration asks for; None where another one holds."""
    calibration = table.calibration
    known = calibration is not None and calibration["num_samples"] > 0
    chance = asked.chance(table.weakest_method, known)
    if chance is None or calibration is None:
        return None
    progress("computing the margin")
    usable = np.flatnonzero(table.length > 0)
    sources = table.frame.get_column("source").fill_null("").to_numpy()[usable]
    lengths = table.length[usable]
    margin = calibrated_margin(calibration, lengths, sources, asked.capacity, chance, asked.shift)
    default = math.floor(asked.ratio(table.weakest_method) * asked.capacity)
    for source in calibration["sources"]:  # of some nothing may be known
        unknown = source["num_usable"] and not source["num_samples"]
        if unknown and default < margin.planned_capacity:
            margin = replace(margin, planned_capacity=default, source=source["name"])
    return margin


def _lengths(table: Lengths, margin: Margin | None) -> dict[str, Any]:
    """What the snapshot says of its lengths."""
    manifest = table.manifest or {}
    lengths = {
        "uri": table.uri,
        "fingerprint": table.fingerprint,
        "num_samples": table.num_samples,
        "encoder": manifest.get("encoder"),
        "methods": table.methods,
    }
    if "transform" in manifest:
        lengths["transform"] = manifest["transform"]
    if margin is not None:
        lengths["calibration"] = {"num_samples": margin.num_samples, "source": margin.source}
    return lengths


def _moved(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """Paths of the published manifest -> those this plan would have named, where they differ."""
    pairs = [
        *((a.get("uri"), b.get("uri")) for a, b in zip(old["shards"], new["shards"], strict=False)),
        *(
            (a.get("media_root"), b.get("media_root"))
            for a, b in zip(old["sources"], new["sources"], strict=False)
        ),
    ]
    return {a: b for a, b in pairs if a is not None and b is not None and a != b}


def _result(
    tables: dict[str, pa.Table], bound: tuple[int, str], options: ResolvedOptions
) -> dict[str, Any]:
    packs, samples, dropped = tables["packs"], tables["samples"], tables["dropped"]
    num_tokens = pc.sum(packs["length"].cast(pa.int64())).as_py()
    # Only a cut makes several rows of one sample, and each has exactly one piece 0.
    num_samples = pc.sum(pc.equal(samples["piece"], 0)).as_py()
    reasons = dropped["reason"].value_counts().to_pylist()
    gap = packs.num_rows - bound[0]
    return {
        "num_packs": packs.num_rows,
        "num_samples": num_samples,
        "num_pieces": samples.num_rows,
        "num_tokens": num_tokens,
        "num_dropped": dropped.num_rows,
        "dropped": {
            one["values"]: one["counts"] for one in sorted(reasons, key=lambda r: r["values"])
        },
        "fill": num_tokens / (packs.num_rows * options.capacity),
        "lower_bound": bound[0],
        "bound": bound[1],
        "gap": gap,
        "gap_percent": 100 * gap / bound[0],
        "schedule": "random",
        "schedule_block": SCHEDULE_BLOCK,
    }


def _tokens_cut(table: Lengths, items: Items, packed: int, options: ResolvedOptions) -> int:
    """Tokens of packed samples that `truncate` left out."""
    rows = items.row if items.piece is None else items.row[items.piece == 0]  # each sample once
    return int(table.length[rows].sum()) - options.shift * len(rows) - packed


def _sources(lengths: Lengths, dropped: pa.Table) -> list[dict[str, Any]]:
    """The sources in the order of the lengths table, with what became of their samples."""
    known = {one["name"]: dict(one) for one in (lengths.manifest or {}).get("sources", [])}
    if not known and "source" in lengths.frame.columns:
        names = lengths.frame.get_column("source").drop_nulls().unique().sort().to_list()
        known = {name: {"name": name, "media_root": None} for name in names}
    if not known:
        return []
    counted = lengths.frame.get_column("source").value_counts()
    totals = dict(zip(*counted.to_dict(as_series=False).values(), strict=True))
    lost = {one["values"]: one["counts"] for one in dropped["source"].value_counts().to_pylist()}
    for name, source in known.items():
        source["num_samples"] = totals.get(name, 0)
        source["num_dropped"] = lost.get(name, 0)
    return list(known.values())
