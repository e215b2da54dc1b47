"""One window's rows of the snapshot's tables, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import FormatError
from packidx.format import index as format_plan
from packidx.format.index import IndexManifest, LengthsOf, Options, Source
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import decoded
from packidx.format.parquet import as_arrow, conform
from packidx.format.schema import PACKS, PIECE_MEDIA, SAMPLES, SAMPLES_OPTIONAL
from packidx.format.terms import lost_percent
from packidx.index.window_files import WindowFiles
from packidx.lengths.table import Lengths
from packidx.pack.slots import in_chunks
from packidx.plan.schedule import blocks_of
from packidx.plan.select.items import Items
from packidx.plan.window import Packs, Variant, WindowPlan

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

    options: Options
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
    def empty(cls, options: Options, num_packs: int = 0, num_pieces: int = 0) -> PlanTotals:
        """Make the totals of no window; packs and rows are numbered on from those there are."""
        return cls(options, num_packs, num_pieces, epochs=[[] for _ in range(options.epochs)])

    @classmethod
    def going_on(cls, options: Options, before: IndexManifest) -> PlanTotals:
        """Make the totals of the windows of the snapshot `before`."""
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
            schedule=self.options.schedule,
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
    """Return rows, Σ label_tokens and usable rows that do not know theirs, for each source."""
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
    """Return what the snapshot says of its lengths."""
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


_CHUNK = 1 << 18  # rows of the samples table made at a time

Progress = Callable[[str], None]


def write_window(files: WindowFiles, plan: WindowPlan, block: int, totals: PlanTotals) -> None:
    """Write a window's packs, samples and dropped samples, and take them into `totals`.

    Args:
        files: of the window.
        plan: of the window.
        block: packs per optimizer step; 0 where no window had any yet.
        totals: of what was written before: numbers of packs and rows go on from there.
    """
    options = plan.options
    totals.begin_window(plan)
    for epoch in range(options.epochs if plan.items.num_items else 0):
        variant = plan.variant(epoch, block)
        packs, first = variant.packs, totals.num_packs
        if not len(packs):
            continue
        files.write("packs", _packs_table(packs, plan, epoch, totals))
        for rows in _samples_chunks(plan.items.samples, variant, first):
            files.write("samples", rows)
        totals.add(epoch, plan, variant)
    if plan.dropped.num_rows:
        files.write("dropped", plan.dropped)
    steps = options.micro_steps
    totals.end_window(plan, blocks_of(options.schedule, block or steps, steps))


def _packs_table(packs: Packs, plan: WindowPlan, epoch: int, totals: PlanTotals) -> pa.Table:
    """One row per pack (schema `PACKS`); a sum is null where one of its parts is unknown."""
    size, first = len(packs), totals.num_packs
    columns = {
        "pack_id": np.arange(first, first + size),
        "epoch": np.full(size, epoch, np.int32),
        "window": np.full(size, plan.window.number, np.int32),
        "num_samples": packs.sizes,
        "first_row": totals.num_pieces + np.cumsum(packs.sizes) - packs.sizes,
    }
    if plan.group_names:
        names = pa.array(plan.group_names)
        columns["group"] = pa.DictionaryArray.from_arrays(packs.group, names)
    for name, (values, null) in packs.sums.items():
        kind = PACKS.field(name).type
        most = int(values.max(initial=0))
        if most >> (kind.bit_width - 1):
            raise FormatError(
                f"the `{name}` of one pack add up to {most:,}, which does not fit {kind}: correct "
                "the lengths"
            )
        columns[name] = pa.array(values, kind, mask=null)
    return conform(pa.table(columns), PACKS)


def _samples_chunks(items: Items, variant: Variant, first_pack: int) -> Iterator[pa.Table]:
    """Rows of the samples table, ordered by pack_id and position (schema `SAMPLES`)."""
    labels, sizes = items.column("label_tokens"), variant.packs.sizes
    for packs, rows in in_chunks(sizes, _CHUNK):
        yield _chunk(items, variant.ordered[rows], sizes[packs], first_pack + packs.start, labels)


def _chunk(
    items: Items,
    ordered: Int64s,
    sizes: Int64s,
    first_pack: int,
    labels: tuple[Int64s, Bools | None] | None,
) -> pa.Table:
    order = (ordered & 0xFFFFFFFF).astype(np.int32)
    length = (ordered >> 32).astype(np.int32)
    rows = order if items.are_all_rows else items.row[order]
    padded = length if items.padded is items.length else items.padded[order]
    starts = np.cumsum(sizes) - sizes
    zeros = np.zeros(len(order), np.int32)
    small = int(padded.max(initial=0)) * len(padded) < 1 << 31
    before: NDArray[Any] = np.cumsum(padded, dtype=np.int32 if small else np.int64)
    before -= padded
    before -= np.repeat(before[starts], sizes)

    def part(values: Int32s | None) -> Int32s:
        return zeros if values is None else values[order]

    arrays: dict[str, NDArray[Any]] = {
        "pack_id": np.repeat(np.arange(first_pack, first_pack + len(sizes)), sizes),
        "position": np.arange(len(order), dtype=np.int32)
        - np.repeat(starts.astype(np.int32), sizes),
        "copy": part(items.copy),
        "piece": part(items.piece),
        "token_start": part(items.token_start),
        "start": before.astype(np.int32, copy=False),
        "length": length,
        "padded_length": padded,
    }
    columns = {name: as_arrow(values) for name, values in arrays.items()}
    if labels is not None:
        values, null = labels
        mask = None if null is None else null[order]
        columns["label_tokens"] = pa.array(values[order].astype(np.int32), mask=mask)
    locator = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")
    present = {"sample_id", *items.rows.frame.columns}
    columns |= {name: items.rows.take(name, rows) for name in locator if name in present}
    if "media" in present:
        media = items.rows.take("media", rows)
        columns["media"] = media_of_pieces(media, arrays["token_start"], length)
    if len(items.rows.chosen):
        columns["pair"] = items.rows.take("pair", rows)
    absent = [name for name in SAMPLES_OPTIONAL if name not in columns]
    return conform(pa.table(columns), pa.schema(f for f in SAMPLES if f.name not in absent))


def media_of_pieces(media: pa.ListArray, start: Int32s, length: Int32s) -> pa.ListArray:
    """Return those of each sample's `media` that begin in a piece of it, or may, as nobody says
    where they stand (schemas `LENGTHS` and `SAMPLES`); null where the sample's are.

    Args:
        media: [n].
        start: int32 [n], the piece's first token in the sample.
        length: int32 [n], its tokens.
    """
    null = media.is_null().to_numpy(zero_copy_only=False)
    sizes = media.value_lengths().fill_null(0).to_numpy()
    values = media.flatten()  # of null lists, none
    stated = values.field("at")
    is_stated = stated.is_valid().to_numpy(zero_copy_only=False)
    piece = np.repeat(np.arange(len(media)), sizes)
    at = stated.fill_null(0).to_numpy() - start[piece]
    inside = ~is_stated | (at >= 0) & (at < length[piece])
    at_of_piece = pa.array(at, pa.int32(), mask=~is_stated)
    fields = [*PIECE_MEDIA.value_type]
    columns = [at_of_piece if f.name == "at" else values.field(f.name) for f in fields]
    kept = pa.StructArray.from_arrays(columns, fields=fields).filter(pa.array(inside))
    ends = np.cumsum(np.bincount(piece[inside], minlength=len(media)), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(as_arrow(offsets), kept, PIECE_MEDIA, mask=pa.array(null))
