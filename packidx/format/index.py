"""The manifest of a snapshot: lengths, sources, tables and their files, and the id they give."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta, field

from packidx.digests import canonical_json, digest_parts
from packidx.errors import FormatError
from packidx.format.manifest import (
    Amount,
    Count,
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
    load_manifest,
    written_default,
)
from packidx.format.schema import (
    DROPPED,
    FORMAT_VERSION,
    INDEX_FORMAT,
    PACKS,
    SAMPLES,
    SAMPLES_OPTIONAL,
    STORED_PACKS,
    STORED_SAMPLES,
)
from packidx.format.terms import MAX_CAPACITY, GroupBy, OnLong, Side, lost_percent
from packidx.io import urls
from packidx.io.cache import StoredFile

_Schedule = Annotated[str, Meta(pattern=r"^(stratified|random|by:.+)\Z")]
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


class MemoryModel(JsonObject, frozen=True, kw_only=True):
    """Memory that a pack may take: `limit` bytes, by the weights of `packidx.plan.memory`."""

    limit: Positive
    per_token: Amount
    per_patch: Amount
    per_sample: Amount
    fixed: Amount

    def estimate(self, tokens: Any, patches: Any, samples: Any) -> Any:
        """Bytes of packs of so many tokens, padding included, patches and samples."""
        sums = self.per_token * tokens + self.per_patch * patches + self.per_sample * samples
        return sums + self.fixed


class Consumed(JsonObject, frozen=True, kw_only=True):
    """The progress of training on a snapshot."""

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
        continues: the state that ``plan --continue`` was given.
        window_shards, window_samples: what ``window`` states, if it is a number.
        lanes: of a stream's plan; `window_samples` is then of one lane.
        memory: None without a limit.
        align_media: all packs of a micro-step have media, or none has.
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
    holdout: str | None
    side: Side
    schedule: _Schedule
    global_batch: _Tokens | None
    micro_steps: _Tokens
    window_shards: _Tokens | None
    window_samples: _Tokens | None
    planned_capacity: _Tokens
    weights: Mapping[str, str]
    cost_model: CostModel
    excluded: str | None
    continues: Consumed | None
    lanes: _Tokens | None = None
    align_media: bool = False
    memory: MemoryModel | None = None

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


class TableFile(File, frozen=True, kw_only=True):
    """A file of a window: rows of one of the tables.

    Attributes:
        footer: CRC-32 of its footer, in hex. Pages have checksums of their own.
    """

    footer: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]


class Sums(JsonObject, frozen=True, kw_only=True):
    """The numbers of a plan: of a window, and of all of them.

    Attributes:
        num_samples: those that are packed; `num_pieces` rows of the samples table.
        num_tokens: in packs; `num_tokens_cut` of packed samples are in none.
        num_tokens_eligible: of the samples that were to be packed; `num_tokens_lost` of them are in
            no pack.
        dropped: reason -> samples.
        lower_bound: packs that every plan needs.
        num_packs_divided: added by ``--align-media``.
    """

    num_packs_without_labels: Count
    num_samples: Count
    num_pieces: Count
    num_tokens: Count
    num_tokens_cut: Count
    num_dropped: Count
    num_tokens_dropped: Count
    num_tokens_eligible: Count
    num_tokens_lost: Count
    dropped: Mapping[str, Count]
    lower_bound: Count
    num_packs_divided: Count = 0


class Window(Sums, frozen=True, kw_only=True):
    """Rows of the lengths table that were planned as one, and their packs, in a folder of their
    own.

    Attributes:
        folder: its name among the windows of the index, which follows from the bytes in it.
        digest: of the assignment.
        num_rows: of the lengths table.
        strategies: the rules that were taken.
        bounds: names of the proofs of the lower bound.
        dropped_of: source -> dropped samples, of sources that have some.
        order_kept: of a schedule ``by:COLUMN``, the correlation of ranks and places of samples.
        files: table by table.
    """

    folder: SnapshotId
    digest: Sha256
    num_rows: Count
    num_packs: Count
    strategies: tuple[str, ...]
    bounds: tuple[str, ...]
    dropped_of: Mapping[str, Count]
    order_kept: Number | None = None
    files: tuple[TableFile, ...]

    def files_of(self, table: str) -> list[TableFile]:
        """Return the files of one of the tables, in order."""
        return [file for file in self.files if file.path.rpartition("-")[0] == table]


class PlacedWindow(NamedTuple):
    """A window among those of its snapshot: what its own numbers begin with."""

    number: int
    first_row: int
    """Row of the lengths table."""
    first_pack: int
    first_piece: int
    """Row of the samples table."""
    window: Window


class Result(Sums, frozen=True, kw_only=True):
    """The result of a plan: the sums of its windows, and what follows from them."""

    num_packs: Count
    fill: Number
    strategies: Mapping[str, Count]
    bound: str
    gap: Integer
    gap_percent: Number
    schedule: _Schedule
    schedule_block: Positive
    schedule_chunk: Positive
    lost_percent: Number
    order_kept: Number | None = None

    @classmethod
    def of(cls, windows: Sequence[Window], options: Options, blocks: tuple[int, int]) -> "Result":
        """Sum up `windows`; packs that may be shuffled together, and that stay together."""
        sums: dict[str, Any] = {
            name: sum(getattr(window, name) for window in windows)
            for name in Sums.__struct_fields__
            if name != "dropped"
        }
        dropped, strategies = Counter[str](), Counter[str]()
        for window in windows:
            dropped.update(window.dropped)
            strategies.update(window.strategies)
        num_packs = sum(window.num_packs for window in windows)
        gap = num_packs - sums["lower_bound"]
        return cls(
            **sums,
            dropped=dict(sorted(dropped.items())),
            num_packs=num_packs,
            fill=sums["num_tokens"] / max(num_packs * options.capacity, 1),
            strategies=dict(sorted(strategies.items())),
            bound=", ".join(dict.fromkeys(name for each in windows for name in each.bounds)),
            gap=gap,
            gap_percent=100 * gap / max(sums["lower_bound"], 1),
            schedule=options.schedule,
            schedule_block=blocks[0],
            schedule_chunk=blocks[1],
            order_kept=windows[0].order_kept if windows else None,
            lost_percent=lost_percent(sums["num_tokens_lost"], sums["num_tokens_eligible"]),
        )


TABLE_NAMES = ("packs", "samples", "dropped")
_ID = re.compile("[0-9a-f]{32}")

TABLES = {"packs": PACKS, "samples": SAMPLES, "dropped": DROPPED}
"""Columns of a snapshot's tables."""
STORED = {"packs": STORED_PACKS, "samples": STORED_SAMPLES, "dropped": DROPPED}
"""Columns of the files of a window."""
# Columns that a file may lack; they read as null.
OPTIONAL: dict[str, tuple[str, ...]] = {"packs": (), "samples": SAMPLES_OPTIONAL, "dropped": ()}


def is_snapshot_id(text: str) -> bool:
    """Return whether `text` may be a snapshot's id: it then leads to no other folder."""
    return _ID.fullmatch(text) is not None


def file_name(table: str, number: int) -> str:
    """Return the name of a table's file `number`."""
    return f"{table}-{number:05d}.parquet"


def folder_name(digests: Iterable[str]) -> str:
    """Return the name of a window's folder: it follows from the SHA-256 of each of its files."""
    return digest_parts(canonical_json(list(digests)))[:32]


def windows_folder(index: str) -> str:
    """Return where an index has its windows."""
    return urls.join_path(index, "windows")


class LengthsOf(JsonObject, frozen=True, kw_only=True):
    """The lengths that were planned."""

    uri: Place
    fingerprint: Sha256
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
    num_label_tokens: Count | None = written_default(None)
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
    windows: tuple[Window, ...]
    created: str
    software: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    """The text of the recipe that was packed, which is not part of what is planned."""

    @cached_property
    def placed(self) -> list[PlacedWindow]:
        """The windows in order, and where the numbers of each begin."""
        placed, row, pack, piece = [], 0, 0, 0
        for number, window in enumerate(self.windows):
            placed.append(PlacedWindow(number, row, pack, piece, window))
            row, pack = row + window.num_rows, pack + window.num_packs
            piece += window.num_pieces
        return placed

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First pack and number of packs of each window."""
        return tuple((placed.first_pack, placed.window.num_packs) for placed in self.placed)

    def files(
        self, table: str | None = None, window: int | None = None
    ) -> list[tuple[str, TableFile]]:
        """Each file and its window's folder: all of them, or those of a table, or of a window."""
        windows = self.windows if window is None else self.windows[window : window + 1]
        return [
            (each.folder, file)
            for name in (TABLE_NAMES if table is None else (table,))
            for each in windows
            for file in each.files_of(name)
        ]

    def stored(
        self, index: str, table: str | None = None, window: int | None = None
    ) -> list[StoredFile]:
        """The same files in the index at `index`."""
        home = windows_folder(index)
        return [
            file.within(urls.join_path(home, folder)) for folder, file in self.files(table, window)
        ]


def snapshot_id(stated: Mapping[str, Any]) -> str:
    """Hex digest of a plan's logical content: lengths, options, assignment; no paths or dates.

    Args:
        stated: the manifest, or the part of it that is known before the id is.
    """
    result = stated["result"]
    head = {
        "format": INDEX_FORMAT,
        "version": FORMAT_VERSION,
        "lengths": stated["lengths"]["fingerprint"],
        "options": stated["options"],
        "schedule": [result["schedule_block"], result["schedule_chunk"]],
    }
    names = ("num_rows", "num_packs", "digest")
    windows = [[window[name] for name in names] for window in stated["windows"]]
    return digest_parts(canonical_json(head), canonical_json(windows))[:32]


def manifest_path(index: str, ident: str) -> str:
    """Return where the manifest of a snapshot is."""
    return urls.join_path(index, f"snapshots/{ident}.json")


def read_manifest(index: str, ident: str) -> IndexManifest:
    """A snapshot's manifest, which is as FORMAT.md says.

    Raises:
        FormatError: it is not, or another version's, or another snapshot's.
        OSError: a store cannot be asked.
    """
    path = manifest_path(index, ident)
    manifest = load_manifest(path, IndexManifest, "plan again")
    if manifest.snapshot_id != ident:
        named = manifest.snapshot_id
        raise FormatError(f"{path} holds snapshot {named}: it was renamed; name it {named}.json")
    return manifest
