"""The manifest of a snapshot: lengths, sources, tables and their files, and the id they give."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta, field

from packidx.digests import canonical_json, digest
from packidx.format.lengths import check_shards, fingerprint
from packidx.format.manifest import (
    Amount,
    Count,
    Digests,
    Encoder,
    File,
    Integer,
    JsonObject,
    Manifest,
    Number,
    Place,
    Positive,
    Sha256,
    Shard,
    Share,
    SnapshotId,
    SourceData,
    Transform,
    Unfit,
    check_files,
    equal,
    load,
    unique,
    written,
)
from packidx.format.schema import (
    DROPPED,
    FORMAT_VERSION,
    INDEX_FORMAT,
    PACKS,
    SAMPLES,
    SAMPLES_OPTIONAL,
)
from packidx.format.terms import MAX_CAPACITY, GroupBy, OnLong, Schedule, Side
from packidx.io import urls

_Tokens = Annotated[int, Meta(ge=1, le=MAX_CAPACITY)]


class CostModel(JsonObject, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights of what a pack costs, in any one unit; of the presets operations of a training step.

    Attributes:
        llm_linear: per token, in the language model's matrix products.
        llm_attention: per l², in its layers of full causal attention.
        llm_windowed: per l² up to the window, in its layers of sliding attention.
        llm_window: tokens a sliding layer looks back; counts only with `llm_windowed`.
        vit_linear: per patch, in the vision tower and its projector.
        vit_attention: per p² of an attention span.
    """

    llm_linear: Amount
    llm_attention: Amount
    llm_windowed: Amount
    llm_window: Amount
    vit_linear: Amount
    vit_attention: Amount


class Consumed(JsonObject, frozen=True, kw_only=True):
    """How far training on a snapshot was."""

    snapshot_id: SnapshotId
    seed: Count
    epoch: Count
    global_batch: Positive
    position: Count


class Options(JsonObject, frozen=True, kw_only=True):
    """A plan's options (`packidx.plan.options.PlanOptions`), every default filled in.

    Attributes:
        planned_capacity: floor((1 - margin) * capacity) - reserve, down to a multiple of
            `pad_pack_to`: no pack holds more.
        side: of the holdout, the one that is planned.
        weights: times that a sample of each source is seen per epoch, as exact decimals or
            fractions; only sources with another weight than 1.
        excluded: fingerprint of the samples that ``exclude`` names.
        continues: what ``plan --continue`` goes on from: snapshots, states, oldest first.
        appends_to: id of the snapshot whose windows were taken over.
        window_shards, window_samples: what ``window`` states, if it is a number.
    """

    capacity: _Tokens
    strategy: str
    seed: Integer
    on_long: OnLong
    margin: Share
    max_images: _Tokens | None
    max_vision_patches: _Tokens | None
    max_samples: _Tokens | None
    group_by: GroupBy | None
    align: _Tokens
    pad_pack_to: _Tokens
    reserve: Annotated[int, Meta(ge=0, le=MAX_CAPACITY)]
    max_packs: _Tokens | None
    holdout: str | None
    side: Side
    epochs: _Tokens
    schedule: Schedule
    global_batch: _Tokens | None
    micro_steps: _Tokens
    window_shards: _Tokens | None
    window_samples: _Tokens | None
    shift: bool
    planned_capacity: _Tokens
    weights: Mapping[str, str]
    cost_model: CostModel
    excluded: str | None
    continues: tuple[Consumed, ...]
    appends_to: SnapshotId | None

    def __post_init__(self) -> None:
        """Raise an `Unfit` unless the members fit each other."""
        if self.planned_capacity > self.capacity:
            raise Unfit(f"has options.planned_capacity above its capacity {self.capacity}")

    def padded(self, lengths: Any) -> Any:
        """Tokens that pieces of `lengths` (integers, an array or one) take in a pack."""
        if self.align == 1:
            return lengths
        return -(-lengths // self.align) * self.align

    @property
    def longest(self) -> int:
        """Tokens that one piece may have."""
        return self.planned_capacity // self.align * self.align

    @property
    def caps(self) -> dict[str, int]:
        """Column of the packs table -> the most that a pack may have of it, where it is capped."""
        asked = {
            "num_images": self.max_images,
            "vision_patches": self.max_vision_patches,
            "num_samples": self.max_samples,
        }
        return {name: cap for name, cap in asked.items() if cap is not None}


class Window(JsonObject, frozen=True, kw_only=True):
    """Rows of the lengths table that were planned as one, and their packs."""

    first_row: Count
    num_rows: Count
    first_pack: Count
    num_packs: Count
    digest: Sha256


class Result(JsonObject, frozen=True, kw_only=True):
    """What a plan came to."""

    num_packs: Count
    num_packs_without_labels: Count = written(0)
    num_samples: Count
    num_pieces: Count
    num_tokens: Count
    num_tokens_cut: Count
    num_dropped: Count
    num_tokens_dropped: Count
    num_tokens_eligible: Count
    num_tokens_lost: Count
    dropped: Mapping[str, Count]
    fill: Number
    strategies: Mapping[str, Count]
    lower_bound: Count
    bound: str
    gap: Integer
    gap_percent: Number
    schedule: Schedule
    schedule_block: Positive
    schedule_chunk: Positive
    windows: tuple[Window, ...]
    lost_percent: Number
    epochs: tuple[tuple[tuple[Count, Count], ...], ...] | None = None

    def __post_init__(self) -> None:
        """Raise an `Unfit` unless the members fit each other."""
        if self.schedule_block % self.schedule_chunk:
            block, chunk = self.schedule_block, self.schedule_chunk
            raise Unfit(f"has schedule_block {block}, no multiple of schedule_chunk {chunk}")
        row = pack = 0
        for number, window in enumerate(self.windows):
            if (window.first_row, window.first_pack) != (row, pack):
                raise Unfit(f"has windows[{number}], which does not follow the one before")
            row, pack = row + window.num_rows, pack + window.num_packs
        if pack != self.num_packs:
            raise Unfit(f"has num_packs {self.num_packs}, its windows have {pack}")
        if sum(self.dropped.values()) != self.num_dropped:
            raise Unfit(f"has num_dropped {self.num_dropped}, which is not the sum of dropped")
        if self.epochs is not None:
            self._check_epochs(self.epochs)

    def _check_epochs(self, epochs: tuple[tuple[tuple[int, int], ...], ...]) -> None:
        """The ranges of all variants are all packs, each once."""
        end = 0
        for first, count in sorted(span for ranges in epochs for span in ranges):
            if first != end:
                raise Unfit(f"has epochs with [{first}, {count}] where pack {end} is next")
            end += count
        if end != self.num_packs:
            raise Unfit(f"has epochs of {end} packs, and {self.num_packs} num_packs")


TABLE_NAMES = ("packs", "samples", "dropped")
_ID = re.compile("[0-9a-f]{32}")

TABLES = {"packs": PACKS, "samples": SAMPLES, "dropped": DROPPED}
# Columns that a file may lack; they read as null.
OPTIONAL: dict[str, tuple[str, ...]] = {"packs": (), "samples": SAMPLES_OPTIONAL, "dropped": ()}


def is_snapshot_id(text: str) -> bool:
    """Return whether `text` may be a snapshot's id: it then leads to no other folder."""
    return _ID.fullmatch(text) is not None


def file_name(table: str, number: int) -> str:
    """Return the name of a table's file `number`."""
    return f"{table}-{number:05d}.parquet"


class TableFile(File, frozen=True, kw_only=True):
    """A file of one of the tables: the rows of one window, or some of them."""

    crc32: Annotated[str, Meta(pattern=r"^([0-9a-f]{8})+\Z")]
    window: Count = written(0)


class LengthsOf(JsonObject, frozen=True, kw_only=True):
    """The lengths that were planned. `digests` is null of a bare table, which has no manifest."""

    uri: Place
    fingerprint: Sha256
    digests: Digests | None
    num_samples: Count
    encoder: Encoder | None
    methods: Mapping[str, Count]
    pattern: bool = False
    transform: Transform | None = None


class Source(SourceData, frozen=True, kw_only=True):
    """A named data set of the mix, and what became of its samples."""

    num_rejected: Count | None = None
    rejected: Mapping[str, Count] | None = None
    num_tokens: Count | None = None
    num_label_tokens: Count | None = written(None)
    num_dropped: Count


class IndexManifest(Manifest, frozen=True, kw_only=True):
    """The manifest of a snapshot (FORMAT.md)."""

    FORMAT: ClassVar[str] = INDEX_FORMAT
    VERSION: ClassVar[int] = FORMAT_VERSION

    snapshot_id: SnapshotId
    parent: SnapshotId | None
    lengths: LengthsOf
    options: Options
    result: Result
    sources: tuple[Source, ...]
    shards: tuple[Shard, ...]
    files: tuple[TableFile, ...]
    created: str
    software: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    """The text of the recipe that was packed, which is no part of what is planned."""

    @property
    def has_pairs(self) -> bool:
        """Whether both sides of preference pairs of a source are samples."""
        layouts = (source.layout for source in self.sources)
        return any(layout is not None and layout.pair == "both" for layout in layouts)

    def check(self) -> None:
        check_files(self.files)
        unique([source.name for source in self.sources], "source")
        check_shards(self.shards, [source.name for source in self.sources])
        equal(
            sum(window.num_rows for window in self.result.windows),
            self.lengths.num_samples,
            "samples of lengths",
        )
        if self.result.epochs is None:
            equal(1, self.options.epochs, "epochs")
        else:
            equal(len(self.result.epochs), self.options.epochs, "epochs")
        if self.lengths.digests is None and self.shards:
            raise Unfit("has shards, and lengths of a bare table, which has none")
        self._check_tables()

    def _check_tables(self) -> None:
        """Files are numbered table by table, in the order of their windows, and have all rows."""
        rows: Counter[str] = Counter()
        last: dict[str, tuple[int, int]] = {}
        packs: Counter[int] = Counter()
        for file in self.files:
            table = file.path.partition("-")[0]
            if table not in TABLE_NAMES:
                continue  # a later version's
            number, window = last.get(table, (-1, 0))
            if file.path != file_name(table, number + 1):
                raise Unfit(f"has file {file.path!r:.80}, not {file_name(table, number + 1)}")
            if not window <= file.window < max(1, len(self.result.windows)):
                raise Unfit(f"has file {file.path} of window {file.window}")
            last[table] = number + 1, file.window
            rows[table] += file.rows
            if table == "packs":
                packs[file.window] += file.rows
        missing = [table for table in TABLE_NAMES if table not in last]
        if missing:
            raise Unfit(f"names no file of {missing[0]}")
        for number, planned in enumerate(self.result.windows):
            equal(packs[number], planned.num_packs, f"packs of window {number}")
        equal(rows["samples"], self.result.num_pieces, "pieces")
        equal(rows["dropped"], self.result.num_dropped, "dropped samples")

    @classmethod
    def prove(cls, stated: Mapping[str, Any]) -> None:
        """The id follows from the plan, and the lengths' fingerprint from what was counted."""
        own = snapshot_id(stated)
        if own != stated["snapshot_id"]:
            raise Unfit(f"has snapshot_id {stated['snapshot_id']}, what it holds gives {own}")
        lengths = stated["lengths"]
        if lengths["digests"] is None:
            return
        counted = {**lengths, "shards": stated["shards"], "sources": stated["sources"]}
        if fingerprint(counted) != lengths["fingerprint"]:
            raise Unfit(
                f"has lengths.fingerprint {lengths['fingerprint']}, its shards, sources, encoder"
                f" and transform give {fingerprint(counted)}"
            )


def snapshot_id(stated: Mapping[str, Any]) -> str:
    """Hex digest of a plan's logical content: lengths, options, assignment; no paths or dates.

    Args:
        stated: the manifest, or the part of it that is known before the id is.
    """
    result = stated["result"]
    names = ("first_row", "num_rows", "first_pack", "num_packs", "digest")
    head = {
        "format": INDEX_FORMAT,
        "version": FORMAT_VERSION,
        "lengths": stated["lengths"]["fingerprint"],
        "options": stated["options"],
        "schedule": [result["schedule_block"], result["schedule_chunk"]],
        "epochs": result.get("epochs"),
    }
    windows = [[window[name] for name in names] for window in result["windows"]]
    return digest(canonical_json(head), canonical_json(windows))[:32]


def read_manifest(folder: str | Path) -> IndexManifest:
    """A snapshot's manifest, which is as FORMAT.md says.

    Raises:
        FormatError: it is not, or another version's.
        OSError: a store cannot be asked.
    """
    return load(urls.join(str(folder), "manifest.json"), IndexManifest, "plan again")
