"""What the manifest says of a plan, added up window by window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.format.reasons import lost_percent
from packidx.lengths.table import Lengths
from packidx.plan.options.resolved import Margin, ResolvedOptions
from packidx.plan.window import Variant, WindowPlan

# Sums of a manifest's result that windows add to.
_SUMS = (
    "num_samples",
    "num_tokens",
    "num_tokens_cut",
    "num_packs_without_labels",
    "num_tokens_dropped",
    "num_tokens_eligible",
    "num_tokens_lost",
    "lower_bound",
)


@dataclass(slots=True)
class PlanTotals:
    """Sums over windows and epochs.

    Attributes:
        options: of the plan.
        num_packs, num_pieces: rows of the tables so far.
        sums: those of `_SUMS`.
        dropped, strategies: as in a manifest's result.
        proofs: names of the bounds' proofs, in the order in which they came.
        windows: as in a manifest's result.
        epochs: of each epoch the runs of its packs.
        blocks: packs that may be shuffled together, and that stay together.
        seen, lost, labels, unlabelled: of each source: rows, dropped rows, label tokens, and
            usable rows that do not know theirs.
    """

    options: ResolvedOptions
    num_packs: int = 0
    num_pieces: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    proofs: dict[str, None] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[list[list[int]]] = field(default_factory=list)
    blocks: tuple[int, int] = (0, 1)
    seen: Counter[str | None] = field(default_factory=Counter)
    lost: Counter[str | None] = field(default_factory=Counter)
    labels: Counter[str | None] = field(default_factory=Counter)
    unlabelled: Counter[str | None] = field(default_factory=Counter)

    @classmethod
    def empty(cls, options: ResolvedOptions, num_packs: int = 0, num_pieces: int = 0) -> PlanTotals:
        """Of no window; packs and rows are numbered on from those there are."""
        return cls(options, num_packs, num_pieces, epochs=[[] for _ in range(options.epochs)])

    @classmethod
    def going_on(cls, options: ResolvedOptions, before: Mapping[str, Any]) -> PlanTotals:
        """Of the windows of the snapshot whose manifest is `before`."""
        result, sources = before["result"], before["sources"]
        totals = cls.empty(options, int(result["num_packs"]), int(result.get("num_pieces", 0)))
        totals.sums.update({name: int(result.get(name, 0)) for name in _SUMS})
        totals.dropped.update(result.get("dropped", {}))
        totals.strategies.update(result.get("strategies", {}))
        totals.proofs |= dict.fromkeys(result.get("bound", "").split(", "))
        totals.windows += [dict(window) for window in result.get("windows", [])]
        epochs = result.get("epochs", [[[0, totals.num_packs]]])
        totals.epochs = [[list(run) for run in runs] for runs in epochs]
        for source in sources:
            name, labels = source["name"], source.get("num_label_tokens")
            totals.seen[name] = source["num_samples"]
            totals.lost[name] = source["num_dropped"]
            totals.labels[name] = labels or 0
            totals.unlabelled[name] = int(labels is None)
        return totals

    def take(self, other: PlanTotals) -> None:
        """Add what `other` has added up, which has gone on from here."""
        self.num_packs, self.num_pieces, self.blocks = (
            other.num_packs,
            other.num_pieces,
            other.blocks,
        )
        self.proofs |= other.proofs
        self.windows += other.windows
        for name in ("sums", "dropped", "strategies", "seen", "lost", "labels", "unlabelled"):
            getattr(self, name).update(getattr(other, name))
        for runs, further in zip(self.epochs, other.epochs, strict=True):
            runs += further

    def begin_window(self, plan: WindowPlan) -> None:
        """Take the rows of a window and what is dropped of them."""
        first, rows = plan.window.start, plan.window.stop - plan.window.start
        self.windows.append({"first_row": first, "num_rows": rows, "first_pack": self.num_packs})
        lengths = plan.dropped["length"].fill_null(0).to_numpy()
        self.sums["num_tokens_dropped"] += int(lengths.clip(0).sum())
        self.sums["num_tokens_eligible"] += plan.items.num_eligible
        self.sums["num_tokens_lost"] += plan.num_lost
        self.dropped.update(_frequencies(plan.dropped, "reason"))
        self.lost.update(_frequencies(plan.dropped, "source"))
        for name, samples, labels, unlabelled in _by_source(plan.items.rows.frame):
            self.seen[name] += samples
            self.labels[name] += labels
            self.unlabelled[name] += unlabelled

    def add(self, epoch: int, plan: WindowPlan, variant: Variant) -> None:
        """Take the packs of one epoch."""
        size = len(variant.packs)
        self.epochs[epoch].append([self.num_packs, size])  # each window keeps its own blocks
        self.num_packs += size
        self.num_pieces += len(variant.ordered)
        self.sums["num_tokens"] += int(variant.packs.sums["length"][0].sum())
        if "label_tokens" in variant.packs.sums:
            labels, unknown = variant.packs.sums["label_tokens"]
            without = labels == 0 if unknown is None else (labels == 0) & ~unknown
            self.sums["num_packs_without_labels"] += int(np.count_nonzero(without))
        for bound, name in plan.bounds():
            self.sums["lower_bound"] += bound
            self.proofs[name] = None

    def end_window(self, plan: WindowPlan, blocks: tuple[int, int]) -> None:
        """Take what holds for all epochs of a window."""
        self.blocks = blocks
        window = self.windows[-1]
        window["num_packs"] = self.num_packs - window["first_pack"]
        self.sums["num_samples"] += plan.num_samples
        self.sums["num_tokens_cut"] += plan.items.tokens_cut
        self.strategies.update(plan.strategies)

    def result(self, digests: list[str]) -> dict[str, Any]:
        """The manifest's `result`."""
        for window, digest in zip(self.windows, digests, strict=True):
            window["digest"] = digest
        sums, bound = self.sums, self.sums["lower_bound"]
        gap = self.num_packs - bound
        result: dict[str, Any] = {
            "num_packs": self.num_packs,
            "num_packs_without_labels": sums["num_packs_without_labels"],
            "num_samples": sums["num_samples"],
            "num_pieces": self.num_pieces,
            "num_tokens": sums["num_tokens"],
            "num_tokens_cut": sums["num_tokens_cut"],
            "num_dropped": sum(self.dropped.values()),
            "num_tokens_dropped": sums["num_tokens_dropped"],
            "num_tokens_eligible": sums["num_tokens_eligible"],
            "num_tokens_lost": sums["num_tokens_lost"],
            "dropped": dict(sorted(self.dropped.items())),
            "fill": sums["num_tokens"] / (self.num_packs * self.options.capacity),
            "strategies": dict(sorted(self.strategies.items())),
            "lower_bound": bound,
            "bound": ", ".join(self.proofs),
            "gap": gap,
            "gap_percent": 100 * gap / max(bound, 1),
            "schedule": self.options.schedule,
            "schedule_block": self.blocks[0],
            "schedule_chunk": self.blocks[1],
            "windows": self.windows,
        }
        result["lost_percent"] = lost_percent(result)
        if len(self.windows) > 1 or self.options.epochs > 1:
            result["epochs"] = self.epochs
        return result

    def sources(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The sources in the order of the lengths table, with what became of their samples."""
        names = sorted(name for name in self.seen if name is not None)
        sources = [dict(source) for source in known]
        sources = sources or [{"name": name, "media_root": None} for name in names]
        for source in sources:
            name = source["name"]
            source["num_samples"] = self.seen[name]
            source["num_dropped"] = self.lost[name]
            source["num_label_tokens"] = None if self.unlabelled[name] else self.labels[name]
        return sources


def _frequencies(table: pa.Table, name: str) -> dict[Any, int]:
    return {pair["values"]: pair["counts"] for pair in table[name].value_counts().to_pylist()}


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
