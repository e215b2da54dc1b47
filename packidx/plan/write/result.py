"""What the manifest says of a plan, added up window by window."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.format import plan as format_plan
from packidx.format.decode import decoded
from packidx.format.index import IndexManifest, LengthsOf, Source
from packidx.format.lengths import LengthsManifest
from packidx.format.terms import Schedule, lost_percent
from packidx.lengths.table import Lengths
from packidx.plan.options.resolved import ResolvedOptions
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
        num_packs, num_pieces: rows of the tables so far.
        sums: those of `_SUMS`.
        dropped, strategies, windows: as in a manifest's result.
        proofs: names of the bounds' proofs, in the order in which they came.
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
    windows: list[format_plan.Window] = field(default_factory=list)
    epochs: list[list[tuple[int, int]]] = field(default_factory=list)
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
    def going_on(cls, options: ResolvedOptions, before: IndexManifest) -> PlanTotals:
        """Of the windows of the snapshot `before`."""
        result = before.result
        totals = cls.empty(options, result.num_packs, result.num_pieces)
        totals.sums.update({name: getattr(result, name) for name in _SUMS})
        totals.dropped.update(result.dropped)
        totals.strategies.update(result.strategies)
        totals.proofs |= dict.fromkeys(result.bound.split(", "))
        totals.windows += result.windows
        epochs = (((0, result.num_packs),),) if result.epochs is None else result.epochs
        totals.epochs = [list(runs) for runs in epochs]
        for source in before.sources:
            totals.seen[source.name] = source.num_samples
            totals.lost[source.name] = source.num_dropped
            totals.labels[source.name] = source.num_label_tokens or 0
            totals.unlabelled[source.name] = int(source.num_label_tokens is None)
        return totals

    def take(self, other: PlanTotals) -> None:
        """Add what `other` has added up, which has gone on from here."""
        self.num_packs, self.num_pieces = other.num_packs, other.num_pieces
        self.blocks = other.blocks
        self.proofs |= other.proofs
        self.windows += other.windows
        for name in ("sums", "dropped", "strategies", "seen", "lost", "labels", "unlabelled"):
            getattr(self, name).update(getattr(other, name))
        for runs, further in zip(self.epochs, other.epochs, strict=True):
            runs += further

    def begin_window(self, plan: WindowPlan) -> None:
        """Take the rows of a window and what is dropped of them."""
        first, rows = plan.window.start, plan.window.stop - plan.window.start
        begun = format_plan.Window(
            first_row=first, num_rows=rows, first_pack=self.num_packs, num_packs=0, digest=""
        )
        self.windows.append(begun)
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
        self.epochs[epoch].append((self.num_packs, size))  # each window keeps its own blocks
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
        self.windows[-1] = replace(window, num_packs=self.num_packs - window.first_pack)
        self.sums["num_samples"] += plan.num_samples
        self.sums["num_tokens_cut"] += plan.num_left_out
        self.strategies.update(plan.strategies)

    def result(self, digests: list[str]) -> format_plan.Result:
        """The manifest's `result`."""
        sums: dict[str, Any] = {name: self.sums[name] for name in _SUMS}
        gap = self.num_packs - sums["lower_bound"]
        windows = zip(self.windows, digests, strict=True)
        has_epochs = len(self.windows) > 1 or self.options.epochs > 1
        return format_plan.Result(
            **sums,
            num_packs=self.num_packs,
            num_pieces=self.num_pieces,
            num_dropped=sum(self.dropped.values()),
            dropped=dict(sorted(self.dropped.items())),
            fill=sums["num_tokens"] / (self.num_packs * self.options.capacity),
            strategies=dict(sorted(self.strategies.items())),
            bound=", ".join(self.proofs),
            gap=gap,
            gap_percent=100 * gap / max(sums["lower_bound"], 1),
            schedule=cast(Schedule, self.options.schedule),
            schedule_block=self.blocks[0],
            schedule_chunk=self.blocks[1],
            windows=tuple(replace(window, digest=digest) for window, digest in windows),
            lost_percent=lost_percent(sums["num_tokens_lost"], sums["num_tokens_eligible"]),
            epochs=tuple(map(tuple, self.epochs)) if has_epochs else None,
        )

    def sources(self, lengths: LengthsManifest | None) -> tuple[Source, ...]:
        """The sources in the order of the lengths table, with what became of their samples."""
        if lengths is None:
            names = sorted(name for name in self.seen if name is not None)
            stated: list[dict[str, Any]] = [{"name": name, "media_root": None} for name in names]
        else:
            stated = [source.to_json() for source in lengths.sources]
        return tuple(decoded(Source, source | self._of_source(source["name"])) for source in stated)

    def _of_source(self, name: str) -> dict[str, int | None]:
        return {
            "num_samples": self.seen[name],
            "num_dropped": self.lost[name],
            "num_label_tokens": None if self.unlabelled[name] else self.labels[name],
        }


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


def lengths_entry(table: Lengths) -> LengthsOf:
    """What the snapshot says of its lengths."""
    manifest = table.manifest
    return LengthsOf(
        uri=table.uri,
        fingerprint=table.fingerprint(),
        digests=None if manifest is None else manifest.digests,
        num_samples=table.num_samples,
        encoder=table.encoder,
        methods=table.methods,
        pattern=table.is_pattern,
        transform=None if manifest is None else manifest.transform,
    )
