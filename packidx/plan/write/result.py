"""What the manifest says of a plan, added up window by window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.format.reasons import lost_percent
from packidx.lengths.table import Lengths
from packidx.plan.options.resolved import Margin, ResolvedOptions
from packidx.plan.window import Variant, WindowPlan
from packidx.plan.windows import Window


class PlanTotals:
    """Sums over windows and epochs.

    Args:
        options: of the plan.
        before: manifest of the snapshot whose windows the plan takes over.

    Attributes:
        options: of the plan.
        num_packs, num_pieces: rows of the tables so far.
    """

    def __init__(self, options: ResolvedOptions, before: dict[str, Any] | None) -> None:
        self.options = options
        result = {} if before is None else before["result"]
        self.num_packs = int(result.get("num_packs", 0))
        self.num_pieces = int(result.get("num_pieces", 0))
        self._samples = int(result.get("num_samples", 0))
        self._tokens = int(result.get("num_tokens", 0))
        self._tokens_cut = int(result.get("num_tokens_cut", 0))
        self._without_labels = int(result.get("num_packs_without_labels", 0))
        self._tokens_dropped = int(result.get("num_tokens_dropped", 0))
        self._tokens_eligible = int(result.get("num_tokens_eligible", 0))
        self._tokens_lost = int(result.get("num_tokens_lost", 0))
        self._dropped = Counter(result.get("dropped", {}))
        self._strategies = Counter(result.get("strategies", {}))
        self._bound = int(result.get("lower_bound", 0))
        self._proofs = dict.fromkeys(result.get("bound", "").split(", ")) if result else {}
        self._windows = [dict(one) for one in result.get("windows", [])]
        self._ranges: list[list[list[int]]] = [
            [list(one) for one in ranges] for ranges in result.get("epochs", [])
        ] or [[] for _ in range(options.epochs)]
        if before is not None and "epochs" not in result:
            self._ranges = [[[0, self.num_packs]]]
        self._block = 0, 1
        sources = [] if before is None else before["sources"]
        self._seen = Counter({one["name"]: one["num_samples"] for one in sources})
        self._lost = Counter({one["name"]: one["num_dropped"] for one in sources})
        self._labels = Counter({one["name"]: one.get("num_label_tokens") or 0 for one in sources})
        self._unlabelled = Counter(
            {one["name"]: int(one.get("num_label_tokens") is None) for one in sources}
        )

    def going_on(self) -> PlanTotals:
        """An empty one, whose windows' packs and rows are numbered on from here."""
        other = PlanTotals(self.options, None)
        other.num_packs, other.num_pieces = self.num_packs, self.num_pieces
        return other

    def take(self, other: PlanTotals) -> None:
        """Add what `other` has added up, which has gone on from here."""
        self.num_packs, self.num_pieces = other.num_packs, other.num_pieces
        self._samples += other._samples
        self._tokens += other._tokens
        self._tokens_cut += other._tokens_cut
        self._without_labels += other._without_labels
        self._tokens_dropped += other._tokens_dropped
        self._tokens_eligible += other._tokens_eligible
        self._tokens_lost += other._tokens_lost
        self._bound += other._bound
        self._proofs |= other._proofs
        self._windows += other._windows
        self._block = other._block
        for mine, more in (
            (self._dropped, other._dropped),
            (self._strategies, other._strategies),
            (self._seen, other._seen),
            (self._lost, other._lost),
            (self._labels, other._labels),
            (self._unlabelled, other._unlabelled),
        ):
            mine.update(more)
        for ranges, further in zip(self._ranges, other._ranges, strict=True):
            ranges += further

    def begin_window(self, window: Window, plan: WindowPlan, dropped: pa.Table) -> None:
        """Take the rows of a window and what is dropped of them."""
        self._windows.append(
            {
                "first_row": window.start,
                "num_rows": window.stop - window.start,
                "first_pack": self.num_packs,
            }
        )
        self._tokens_dropped += int(dropped["length"].fill_null(0).to_numpy().clip(0).sum())
        self._tokens_eligible += plan.items.num_eligible
        self._tokens_lost += plan.num_lost
        for one in dropped["reason"].value_counts().to_pylist():
            self._dropped[one["values"]] += one["counts"]
        for name, samples, labels, unlabelled in _by_source(plan.items.rows.frame):
            self._seen[name] += samples
            self._labels[name] += labels
            self._unlabelled[name] += unlabelled
        for one in dropped["source"].value_counts().to_pylist():
            self._lost[one["values"]] += one["counts"]

    def add(self, epoch: int, plan: WindowPlan, variant: Variant) -> None:
        """Take the packs of one epoch."""
        size = len(variant.packs)
        self._ranges[epoch].append([self.num_packs, size])  # each window keeps its own blocks
        self.num_packs += size
        self.num_pieces += len(variant.placed)
        self._tokens += int(variant.packs.sums["length"][0].sum())
        if "label_tokens" in variant.packs.sums:
            labels, unknown = variant.packs.sums["label_tokens"]
            without = labels == 0 if unknown is None else (labels == 0) & ~unknown
            self._without_labels += int(np.count_nonzero(without))
        for bound, name in plan.bounds():
            self._bound += bound
            self._proofs[name] = None

    def end_window(self, plan: WindowPlan, blocks: tuple[int, int]) -> None:
        """Take what holds for all epochs of a window."""
        self._block = blocks
        window = self._windows[-1]
        window["num_packs"] = self.num_packs - window["first_pack"]
        self._samples += plan.num_samples
        self._tokens_cut += plan.items.tokens_cut
        self._strategies.update(plan.strategies)

    def result(self, digests: list[str]) -> dict[str, Any]:
        """The manifest's `result`."""
        for window, digest in zip(self._windows, digests, strict=True):
            window["digest"] = digest
        gap = self.num_packs - self._bound
        block, chunk = self._block
        result = {
            "num_packs": self.num_packs,
            "num_packs_without_labels": self._without_labels,
            "num_samples": self._samples,
            "num_pieces": self.num_pieces,
            "num_tokens": self._tokens,
            "num_tokens_cut": self._tokens_cut,
            "num_dropped": sum(self._dropped.values()),
            "num_tokens_dropped": self._tokens_dropped,
            "num_tokens_eligible": self._tokens_eligible,
            "num_tokens_lost": self._tokens_lost,
            "dropped": dict(sorted(self._dropped.items())),
            "fill": self._tokens / (self.num_packs * self.options.capacity),
            "strategies": dict(sorted(self._strategies.items())),
            "lower_bound": self._bound,
            "bound": ", ".join(self._proofs),
            "gap": gap,
            "gap_percent": 100 * gap / max(self._bound, 1),
            "schedule": self.options.schedule,
            "schedule_block": block,
            "schedule_chunk": chunk,
            "windows": self._windows,
        }
        result["lost_percent"] = lost_percent(result)
        if len(self._windows) > 1 or self.options.epochs > 1:
            result["epochs"] = self._ranges
        return result

    def sources(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The sources in the order of the lengths table, with what became of their samples."""
        found = [dict(one) for one in known]
        if not found:
            names = sorted(name for name in self._seen if name is not None)
            found = [{"name": name, "media_root": None} for name in names]
        for source in found:
            source["num_samples"] = self._seen.get(source["name"], 0)
            source["num_dropped"] = self._lost.get(source["name"], 0)
            labels = None if self._unlabelled[source["name"]] else self._labels[source["name"]]
            source["num_label_tokens"] = labels
        return found


def _by_source(frame: pl.DataFrame) -> list[tuple[str | None, int, int, int]]:
    """Of every source: rows, Σ label_tokens, and usable rows that do not know theirs."""
    if "source" not in frame.columns:
        return []
    labels = pl.lit(None, pl.Int64)
    if "label_tokens" in frame.columns:
        labels = pl.col("label_tokens").cast(pl.Int64)
    unknown = labels.is_null() & (pl.col("length") > 0)
    # Columns first: older releases of Polars sum up no literal.
    columns = frame.lazy().select("source", labels.alias("sum"), unknown.alias("unknown"))
    grouped = columns.group_by("source").agg(pl.len(), pl.col("sum", "unknown").sum())
    return grouped.collect().rows()


def lengths_entry(table: Lengths, margin: Margin | None) -> dict[str, Any]:
    """What the snapshot says of its lengths."""
    manifest = table.manifest or {}
    lengths = {
        "uri": table.uri,
        "fingerprint": table.fingerprint(),
        "digests": manifest.get("digests"),
        "num_samples": table.num_samples,
        "encoder": manifest.get("encoder"),
        "methods": table.methods,
    }
    if table.is_pattern:
        lengths["pattern"] = True
    if "transform" in manifest:
        lengths["transform"] = manifest["transform"]
    if margin is not None:
        lengths["calibration"] = {"num_samples": margin.num_samples, "source": margin.source}
    return lengths
