"""What the manifest of a snapshot says of its plan: options, windows and result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from packidx.format.decode import Range, Unfit
from packidx.format.json_object import JsonObject, written
from packidx.format.manifest import Count, Positive, Sha256, Share, SnapshotId
from packidx.format.terms import MAX_CAPACITY, GroupBy, OnLong, Schedule, Side

_Tokens = Annotated[int, Range(1, MAX_CAPACITY)]
_Weight = Annotated[float, Range(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel(JsonObject):
    """Weights of what a pack costs."""

    CLOSED: ClassVar[bool] = True

    llm_linear: _Weight
    llm_attention: _Weight
    llm_windowed: _Weight
    llm_window: _Weight
    vit_linear: _Weight
    vit_attention: _Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed(JsonObject):
    """How far training on a snapshot was."""

    snapshot_id: SnapshotId
    seed: Count
    epoch: Count
    global_batch: Positive
    position: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(JsonObject):
    """A plan's options, resolved (`packidx.plan.options.plan_options`)."""

    capacity: _Tokens
    planned_capacity: _Tokens
    strategy: str
    seed: int
    on_long: OnLong
    margin: Share
    shift: bool
    max_images: _Tokens | None
    max_vision_patches: _Tokens | None
    max_samples: _Tokens | None
    group_by: GroupBy | None
    align: _Tokens
    pad_pack_to: _Tokens
    reserve: Annotated[int, Range(0, MAX_CAPACITY)]
    max_packs: _Tokens | None
    holdout: str | None
    side: Side
    epochs: _Tokens
    schedule: Schedule
    global_batch: _Tokens | None
    micro_steps: _Tokens
    window_shards: _Tokens | None
    window_samples: _Tokens | None
    weights: Mapping[str, str]
    cost_model: CostModel
    excluded: str | None
    continues: tuple[Consumed, ...]
    appends_to: SnapshotId | None

    def check(self) -> None:
        if self.planned_capacity > self.capacity:
            raise Unfit("has ", f".planned_capacity above its capacity {self.capacity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(JsonObject):
    """Rows of the lengths table that were planned as one, and their packs."""

    first_row: Count
    num_rows: Count
    first_pack: Count
    num_packs: Count
    digest: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(JsonObject):
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
    fill: float
    strategies: Mapping[str, Count]
    lower_bound: Count
    bound: str
    gap: int
    gap_percent: float
    schedule: Schedule
    schedule_block: Positive
    schedule_chunk: Positive
    windows: tuple[Window, ...]
    lost_percent: float
    epochs: tuple[tuple[tuple[Count, Count], ...], ...] | None = None

    def check(self) -> None:
        if self.schedule_block % self.schedule_chunk:
            block, chunk = self.schedule_block, self.schedule_chunk
            raise Unfit("has ", f".schedule_block {block}, no multiple of schedule_chunk {chunk}")
        row = pack = 0
        for number, window in enumerate(self.windows):
            if (window.first_row, window.first_pack) != (row, pack):
                raise Unfit("has ", f".windows[{number}], which does not follow the one before")
            row, pack = row + window.num_rows, pack + window.num_packs
        if pack != self.num_packs:
            raise Unfit("has ", f".num_packs {self.num_packs}, its windows have {pack}")
        if sum(self.dropped.values()) != self.num_dropped:
            raise Unfit("has ", f".num_dropped {self.num_dropped}, which is not the sum of dropped")
        if self.epochs is not None:
            self._check_epochs(self.epochs)

    def _check_epochs(self, epochs: tuple[tuple[tuple[int, int], ...], ...]) -> None:
        """The ranges of all variants are all packs, each once."""
        end = 0
        for first, count in sorted(span for ranges in epochs for span in ranges):
            if first != end:
                raise Unfit("has ", f".epochs with [{first}, {count}] where pack {end} is next")
            end += count
        if end != self.num_packs:
            raise Unfit("has ", f".epochs of {end} packs, and {self.num_packs} num_packs")
