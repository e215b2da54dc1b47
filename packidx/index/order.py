"""An epoch's packs, and their order: a keyed bijection from order positions to pack numbers.

Nothing is shuffled in memory. A position is turned into a pack number by a few integer operations,
so any part of the order can be had on its own, on any rank, after any restart. Only wrapping uint64
arithmetic is used: the same numbers come out on every platform and in every NumPy version.

A plan's schedule survives: an epoch exchanges whole blocks (optimizer steps), within a block whole
chunks (micro-steps), and within a chunk packs.

An order is dealt to optimizer steps, micro-steps and ranks by one rule. Step S trains on order
positions [S·G, (S+1)·G), G being the global batch. With W ranks, micro-step m of rank r in that
step is position S·G + m·W + r. The positions after the last whole step are left out of the epoch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict, Unpack

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from packidx.arrays import Int64s, Uint64s
from packidx.errors import FormatError, MismatchError, OptionError
from packidx.format.index import IndexManifest
from packidx.format.manifest import Count, JsonObject, Positive, written_default
from packidx.format.schema import fields_of
from packidx.hashing import derive_key, splitmix64, splitmix64s
from packidx.permutation import permute

if TYPE_CHECKING:
    from packidx.index.reader import Index


def order_key(snapshot_id: str, seed: int, epoch: int) -> int:
    """The 64-bit key of one epoch's order."""
    return derive_key(seed, epoch, snapshot_id)


class EpochOrder:
    """Order position -> pack number, for one epoch, in memory for its ranges and one block.

    The packs that fill no block, fewer than one, stand at the end of the order, where a reader of
    steps as large as blocks leaves them out. Lest those be the same in every epoch, they first
    change places, by chunks, with as many packs of one block: which one is drawn so that every pack
    is left out alike often, and only one step of the epoch has micro-steps of unequal cost.

    Args:
        ranges: [first pack, number of packs] of every range of the epoch; the packs of a range that
            fill no block of it come after the blocks of all ranges.
        block: `result.schedule_block` of the manifest.
        chunk: `result.schedule_chunk`; `block` is a multiple.
        key: from `order_key`.
        keeps_blocks: blocks stay in their order, and the tail where it is: of a schedule by a
            column.
    """

    def __init__(
        self,
        ranges: Sequence[Sequence[int]],
        block: int,
        chunk: int,
        key: int,
        keeps_blocks: bool = False,
    ) -> None:
        self.block, self.chunk, self.key = block, chunk, key
        self.keeps_blocks = keeps_blocks
        blocks, chunks, packs = [], [], []  # those that fill no chunk come last
        for first, count in ranges:
            in_blocks, in_chunks = count // block * block, count // chunk * chunk
            blocks.append((first, in_blocks))
            chunks.append((first + in_blocks, in_chunks - in_blocks))
            packs.append((first + in_chunks, count - in_chunks))
        parts = [part for part in (*blocks, *chunks, *packs) if part[1]]
        self._first = np.array([first for first, _ in parts], np.int64)
        self._starts = np.cumsum([0, *(count for _, count in parts)], dtype=np.int64)
        self.num_packs = int(self._starts[-1])
        self.full, self.tail = divmod(self.num_packs, block)
        self._exchanged = self._draw_exchanged()
        self._sorted = np.argsort(self._exchanged)

    def packs(self, positions: npt.NDArray[Any]) -> Int64s:
        """Pack numbers, int64, at the order `positions` (each in [0, num_packs))."""
        where = np.asarray(positions).astype(np.uint64)
        body = np.uint64(self.full * self.block)
        planned = np.empty(len(where), np.int64)
        inside = where < body
        planned[inside] = self._in_blocks(where[inside])
        planned[~inside] = body + permute(where[~inside] - body, self.tail, self._derive_key(4))
        self._exchange_tail(planned)
        part = np.searchsorted(self._starts, planned, side="right") - 1
        return self._first[part] + planned - self._starts[part]

    def scheduled(self) -> Int64s:
        """Pack numbers as they were planned: each range's blocks, then what is left."""
        planned = np.arange(self.num_packs)
        part = np.searchsorted(self._starts, planned, side="right") - 1
        return self._first[part] + planned - self._starts[part]

    def positions(self, packs: npt.NDArray[Any]) -> Int64s:
        """Order positions of `packs`, int64, the inverse of `packs`; -1 of those of no range."""
        order = self.packs(np.arange(self.num_packs))
        ascending = np.argsort(order)
        nearest = np.searchsorted(order, packs, sorter=ascending)
        found = ascending[np.minimum(nearest, self.num_packs - 1)]
        return np.where(order[found] == packs, found, -1)

    def _in_blocks(self, where: Uint64s) -> Uint64s:
        """Return where in the plan positions of full blocks are, blocks, chunks and packs
        permuted."""
        block, chunk = np.uint64(self.block), np.uint64(self.chunk)
        number = where // block
        if not self.keeps_blocks:
            number = permute(number, self.full, self._derive_key(1))
        per_block = self.block // self.chunk
        slot = where % block // chunk
        slot = permute(slot, per_block, splitmix64s(number ^ np.uint64(self._derive_key(2))))
        slot += number * np.uint64(per_block)
        pack = permute(
            where % chunk, self.chunk, splitmix64s(slot ^ np.uint64(self._derive_key(3)))
        )
        return slot * chunk + pack

    def _draw_exchanged(self) -> Int64s:
        """Return what exchanges its packs with the tail, as places in the plan, int64 [tail], or
        none.

        A block is drawn with the share of the packs that it has, and so is the tail itself, which
        then stays; from a block the tail's whole chunks take chunks, its rest packs of one more.
        """
        drawn = self._derive_key(5) % max(1, self.num_packs)
        if not self.tail or self.keeps_blocks or drawn >= self.full * self.block:
            return np.zeros(0, np.int64)
        tail = np.arange(self.tail, dtype=np.uint64)
        slot = permute(tail // np.uint64(self.chunk), self.block // self.chunk, self._derive_key(6))
        inside = permute(tail % np.uint64(self.chunk), self.chunk, self._derive_key(7))
        first = drawn // self.block * self.block
        return first + (slot * np.uint64(self.chunk) + inside).astype(np.int64)

    def _exchange_tail(self, planned: Int64s) -> None:
        """Exchange, in `planned`, the tail with what was drawn for it."""
        if not len(self._exchanged):
            return
        body = self.full * self.block
        nearest = np.searchsorted(self._exchanged, planned, sorter=self._sorted)
        tail = self._sorted[np.minimum(nearest, self.tail - 1)]
        there, here = planned >= body, self._exchanged[tail] == planned
        planned[there] = self._exchanged[planned[there] - body]
        planned[here] = body + tail[here]

    def _derive_key(self, purpose: int) -> int:
        return splitmix64(self.key ^ purpose)


class HeaviestFirst(EpochOrder):
    """An epoch's order in which the heaviest packs come first, and the rest is as it was.

    The i-th heaviest pack changes places with others so that it is at position i; each pack still
    occurs once.

    Args:
        order: of the epoch.
        heaviest: int64 [k], pack numbers.
    """

    def __init__(self, order: EpochOrder, heaviest: Int64s) -> None:
        vars(self).update(vars(order))
        self.order = order
        first = np.arange(len(heaviest))
        before, places = order.packs(first), order.positions(heaviest)
        displaced = before[~np.isin(before, heaviest)]
        self._at = np.concatenate([first, np.sort(places[places >= len(heaviest)])])
        self._packs = np.concatenate([heaviest, displaced])

    def packs(self, positions: npt.NDArray[Any]) -> Int64s:
        """Pack numbers, int64, at the order `positions`."""
        found = self.order.packs(positions)
        where = np.minimum(np.searchsorted(self._at, positions), len(self._at) - 1)
        moved = self._at[where] == positions
        found[moved] = self._packs[where[moved]]
        return found


def put_heaviest_first(index: Index, order: EpochOrder, number: int) -> EpochOrder:
    """Return `order` with its `number` heaviest packs first: by the plan's memory model, else by
    tokens and vision patches together; `order` itself if `number` is 0."""
    if not number:
        return order
    packs = index.packs(["padded_length", "vision_patches", "num_samples"])
    counts = (column.fill_null(0).to_numpy().astype(np.float64) for column in packs.columns)
    tokens, patches, samples = counts
    model = index.snapshot.options.memory
    weight = tokens + patches if model is None else model.estimate(tokens, patches, samples)
    return HeaviestFirst(order, np.argsort(-weight, kind="stable")[:number])


def packs_per_step(snapshot: IndexManifest) -> int | None:
    """Packs of an optimizer step that an index was planned for; None if it has no steps.

    A random order has none of its own: its `result.schedule_block` is what an epoch moves together.
    """
    if snapshot.result.schedule == "random":
        return snapshot.options.global_batch
    return snapshot.result.schedule_block


def epoch_order(snapshot: IndexManifest, seed: int = 0, epoch: int = 0) -> EpochOrder:
    """The order in which `epoch` trains on the packs of a snapshot."""
    result, key = snapshot.result, order_key(snapshot.snapshot_id, seed, epoch)
    block, chunk = result.schedule_block, result.schedule_chunk
    return EpochOrder(snapshot.ranges, block, chunk, key, result.schedule.startswith("by:"))


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank that there is not.

    Raises:
        OptionError: it is outside [0, world_size), or there is no rank at all.
    """
    if world_size < 1:
        raise OptionError(f"world_size is {world_size}; it must be at least 1")
    if not 0 <= rank < world_size:
        raise OptionError(
            f"rank {rank} is outside [0, {world_size}), the ranks of world_size {world_size}"
        )


def check_global_batch(global_batch: int, world_size: int, num_packs: int, name: str) -> None:
    """Refuse a global batch that cannot be dealt to the ranks, or of which there is no step.

    Args:
        num_packs: of an epoch.
        name: the index in words, for the error.

    Raises:
        OptionError: it is not a multiple of `world_size`, or larger than an epoch.
    """
    if global_batch < 1 or global_batch % world_size:
        raise OptionError(
            f"global_batch {global_batch} is not a positive multiple of world_size"
            f" {world_size}; every rank must train on the same number of packs per step"
        )
    if global_batch > num_packs:
        raise OptionError(
            f"global_batch {global_batch} exceeds the {num_packs} packs of an"
            f" epoch of {name}, so it has no step: lower it or plan more data"
        )


@dataclass(frozen=True, slots=True)
class Dealing:
    """One epoch's packs, dealt to steps of `global_batch` packs and to ranks.

    Nothing is kept but the order's few numbers: any part of it is computed when it is asked for.
    """

    order: EpochOrder
    global_batch: int

    @property
    def num_steps(self) -> int:
        """Optimizer steps in the epoch."""
        return self.order.num_packs // self.global_batch

    @property
    def end(self) -> int:
        """The order position behind the last step."""
        return self.num_steps * self.global_batch

    def left_out(self) -> Int64s:
        """Packs of the one incomplete step that the epoch leaves out, int64, in order."""
        return self.packs(self.end, self.order.num_packs)

    def packs(self, start: int, stop: int) -> Int64s:
        """Packs at order positions start .. stop - 1, int64."""
        return self.order.packs(np.arange(start, stop, dtype=np.int64))

    def packs_of_step(self, step: int) -> Int64s:
        """Packs of optimizer step `step`, int64 [global_batch], rank 0's first pack first.

        Raises:
            OptionError: the epoch has no such step.
        """
        if not 0 <= step < self.num_steps:
            raise OptionError(f"step {step} is outside [0, {self.num_steps}), an epoch's steps")
        return self.packs(step * self.global_batch, (step + 1) * self.global_batch)

    def turns(self, positions: Int64s, world_size: int = 1) -> tuple[Int64s, Int64s]:
        """Return the step and the micro-step of order positions, int64 each."""
        step, place = np.divmod(positions, self.global_batch)
        return step, place // world_size


def to_integer(name: str, value: SupportsIndex) -> int:
    """`value` as a Python int, whatever integer it is: states must be plain JSON.

    Raises:
        OptionError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise OptionError(f"{name} is {value!r} ({kind}): it must be an integer") from None


def whole_number(name: str, value: SupportsIndex, least: int = 0) -> int:
    """`value`, a seed, an epoch or a number of epochs, as a Python int.

    Raises:
        OptionError: it is no integer, or outside [least, 2^63).
    """
    number = to_integer(name, value)
    if not least <= number < 1 << 63:
        raise OptionError(f"{name} is {number}: it must be at least {least} and below 2^63")
    return number


class State(JsonObject, frozen=True, kw_only=True):
    """A `PackSampler.state_dict()`: what training has consumed of an epoch.

    Attributes:
        position: packs consumed in this epoch, over all ranks.
        heaviest_first: of the sampler.
    """

    version: Literal[1] = written_default(1)
    snapshot_id: str
    seed: Count
    epoch: Count
    global_batch: Positive
    position: Count
    heaviest_first: Count = 0

    @classmethod
    def read(cls, state: Any) -> State:
        """Read what `state_dict()` gave, or JSON made of it.

        Raises:
            FormatError: it is not a state of this version.
        """
        try:
            return msgspec.convert(state, cls)
        except msgspec.ValidationError as error:
            raise FormatError(f"this is not the state of a PackSampler: {error}") from None

    def check_position(self, num_packs: int) -> None:
        """Refuse a position behind the last whole step of an epoch of `num_packs` packs.

        Raises:
            FormatError: it is.
        """
        end = num_packs // self.global_batch * self.global_batch
        if self.position > end:
            raise FormatError(f"sampler state has position {self.position}, outside [0, {end}]")


def consumed_packs(index: Index, state: Any) -> Int64s:
    """Pack ids that training has consumed in the state's epoch, int64, in the order of training.

    Args:
        index: the snapshot that was trained on.
        state: `PackSampler.state_dict()` or `state_at(step)`.

    Raises:
        FormatError: this is no such state, or its position is behind the epoch's end.
        MismatchError: it is of another snapshot.
    """
    read = State.read(state)
    mine = index.id
    if read.snapshot_id != mine:
        raise MismatchError(
            f"the state has snapshot_id {read.snapshot_id}, this index {mine}: name the snapshot "
            "that was trained on (INDEX@ID)"
        )
    order = epoch_order(index.snapshot, read.seed, read.epoch)
    read.check_position(order.num_packs)
    number = read.heaviest_first if read.epoch == 0 else 0
    return put_heaviest_first(index, order, number).packs(np.arange(read.position, dtype=np.int64))


ORDER = pa.schema(fields_of("int32 epoch; int64 step; int32 micro_step; int64 position pack_id"))
"""Columns of `Steps.table`."""


class StepOptions(TypedDict, total=False):
    """The way that training deals packs to steps, each None or absent where it is as planned."""

    seed: int | None
    """The seed of `PackSampler`; None means 0."""

    epoch: int | None
    """The one to tell; None means 0."""

    global_batch: int | None
    """Packs per optimizer step."""

    world_size: int | None
    """Data-parallel ranks; None means as many as the plan's micro-steps have packs, where the steps
    are the plan's."""


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch of an index."""

    snapshot: IndexManifest
    epoch: int
    seed: int
    global_batch: int | None
    """Packs per optimizer step; None if it is unknown: `step` is null."""
    world_size: int | None
    """Data-parallel ranks; None if it is unknown: `micro_step` is null."""

    @classmethod
    def of(cls, snapshot: IndexManifest, **options: Unpack[StepOptions]) -> Steps:
        """Make one of an index's manifest.

        Raises:
            OptionError: values that make no sense together.
        """
        planned, num_packs = packs_per_step(snapshot), snapshot.result.num_packs
        epoch, seed = options.get("epoch") or 0, options.get("seed") or 0
        global_batch, world_size = options.get("global_batch"), options.get("world_size")
        if global_batch is not None:
            name = f"snapshot {snapshot.snapshot_id[:12]}"
            check_global_batch(global_batch, world_size or 1, num_packs, name)
        global_batch = global_batch or planned
        if world_size is None:
            is_planned = snapshot.result.schedule != "random" and global_batch == planned
            world_size = snapshot.result.schedule_chunk if is_planned else None
        elif world_size < 1 or (global_batch is not None and global_batch % world_size):
            raise OptionError(
                f"world_size {world_size} does not divide the {global_batch} packs of a step: give"
                " the global batch that PackSampler was given"
            )
        seed, epoch = whole_number("seed", seed), whole_number("epoch", epoch)
        return cls(snapshot, epoch, seed, global_batch, world_size)

    @cached_property
    def dealing(self) -> Dealing:
        """The packs of the epoch in the order of training; a step each if steps are unknown."""
        order = epoch_order(self.snapshot, self.seed, self.epoch)
        return Dealing(order, self.global_batch or 1)

    def table(self) -> pa.Table:
        """A row per pack (schema `ORDER`), in the order of training.

        The packs after the last whole step, which an epoch leaves out, have no `step`.
        """
        dealing, order = self.dealing, self.dealing.order
        position = np.arange(order.num_packs, dtype=np.int64)
        left_out = position >= (0 if self.global_batch is None else dealing.end)
        steps, micro_steps = dealing.turns(position, self.world_size or 1)
        columns = {
            "epoch": pa.array(np.full(len(position), self.epoch)),
            "step": pa.array(steps, mask=left_out),
            "micro_step": pa.array(micro_steps, mask=left_out | (self.world_size is None)),
            "position": pa.array(position),
            "pack_id": pa.array(order.packs(position)),
        }
        return pa.table(columns).cast(ORDER)
