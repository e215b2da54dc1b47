"""One window: its items solved group by group, composed for every epoch, scheduled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Int32s, Int64s
from packidx.errors import OptionError
from packidx.hashing import derive_key
from packidx.lengths.rows import LengthsRows
from packidx.pack.apart import keep_apart
from packidx.pack.slots import Slots, joined
from packidx.pack.solve import Problem, Solution, bound_of, solve
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.pack_sums import Packs, sum_up, with_length
from packidx.plan.schedule.cost_model import CostModel
from packidx.plan.schedule.pack_order import schedule
from packidx.plan.select.dropped import dropped_with
from packidx.plan.select.eligible import Rules
from packidx.plan.select.items import make_items

_SOURCES = 16  # the largest ones, whose shares the schedule looks at
_MEDIA_TYPES = ("text", "image", "video", "image+video")


@dataclass(frozen=True, slots=True)
class Variant:
    """One epoch's packs of a window in their schedule's order.

    Attributes:
        packs: counters.
        placed: int64 [n], items by pack and position, as `with_length` has them.
    """

    packs: Packs
    placed: Int64s


@dataclass(frozen=True, slots=True)
class _Group:
    """Items of a window that may share packs: their numbers, and how they are packed."""

    code: int
    name: str
    items: Int32s
    problem: Problem
    solution: Solution


class WindowPlan:
    """How the samples of one window are packed.

    Attributes:
        items: what is packed.
        dropped: table of what is not.
        groups: names of the groups; empty where all items are one.
    """

    def __init__(
        self, number: int, rows: LengthsRows, options: ResolvedOptions, rules: Rules
    ) -> None:
        self.number = number
        self._options = options
        self.items, self.dropped = make_items(rows, options, rules)
        self.groups: list[str] = []
        self._kept: NDArray[np.bool_] | None = None
        self._stayed = np.empty(0, np.int32)
        self._undrawn = np.empty(0, np.int32)
        self._parts = self._solve()

    @property
    def strategies(self) -> list[str]:
        """The rules that were taken."""
        return sorted({part.solution.strategy for part in self._parts})

    @property
    def num_samples(self) -> int:
        """Samples of which any item is packed."""
        if self.items.copy is None and self.items.piece is None and self._kept is None:
            return self.items.num_items
        packed = np.zeros(self.items.rows.num_rows, bool)
        packed[self.items.row if self._kept is None else self.items.row[self._stayed]] = True
        return int(packed.sum())

    @property
    def num_lost(self) -> int:
        """Tokens that were to be packed and are not; of samples that are not drawn, none."""
        rows, tokens = self.items.lost
        return int(tokens[~np.isin(rows, self._undrawn)].sum())

    @property
    def num_pieces(self) -> int:
        """Rows of the samples table in one epoch."""
        return self.items.num_items if self._kept is None else len(self._stayed)

    def bounds(self) -> list[tuple[int, str]]:
        """Lower bound of each group's packs in one epoch, and the name of its proof."""
        found = []
        for part in self._parts:
            bound, items = part.solution.bound, part.items
            if self._kept is not None:
                stayed = np.isin(items, self._stayed)
                items = items[stayed]
                bound = bound_of(part.problem.select(stayed)) if stayed.any() else (0, "volume")
            if self.items.copy is not None and len(items):
                most = int(np.bincount(self.items.row[items]).max())
                bound = max(bound, (most, "copies"), key=lambda one: one[0])
            found.append(bound)
        return found

    def variant(self, epoch: int, block: int, model: CostModel) -> Variant:
        """Compose the packs of one epoch and put them in order.

        Args:
            epoch: number of the variant.
            block: packs per optimizer step.
            model: what a pack costs.
        """
        slots, group = self._compose(epoch)
        packs = sum_up(self.items, slots, group, self._options.pad_pack_to)
        sums = {name: values for name, (values, _) in packs.sums.items()}
        llm, vit = model.of(sums)
        stratified = self._options.schedule == "stratified"
        order = schedule(
            self._options.schedule,
            llm,
            vit,
            global_batch=block,
            micro_steps=self._options.micro_steps,
            key=derive_key(self._options.seed, "packs", self.number, epoch),
            shares=self._shares(slots, sums) if stratified else (),
        )
        packs = packs.select(order)
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(packs.sizes) - packs.sizes
        placed = np.empty(len(slots.item), np.int64)
        plain = self.items.padded is self.items.length
        for chunk in slots.chunks():
            item = slots.item[chunk.slots]
            known = chunk.length if plain else None
            length = self.items.length[item] if known is None else known
            placed[place[chunk.pack] + chunk.position] = with_length(item, length)
        return Variant(packs, placed)

    def keep(self, packs: NDArray[np.bool_]) -> pa.Table:
        """Drop all packs but some, and return the dropped table with their samples.

        Args:
            packs: bool [n], which provisional packs stay; every epoch has these, in another order.
        """
        slots, _ = self._compose(0)
        self._kept = packs
        self._stayed = slots.item[packs[slots.pack]]
        lost = np.unique(self.items.row[slots.item[~packs[slots.pack]]])
        kept = np.unique(self.items.row[slots.item[packs[slots.pack]]])
        rows = self._undrawn = np.setdiff1d(lost, kept, assume_unique=True)
        detail = f"not among the {self._options.max_packs} packs that were drawn"
        return dropped_with(self.dropped, self.items.rows, rows, "max_packs", detail)

    def num_packs(self, epoch: int = 0) -> int:
        """Packs of one epoch."""
        known = [part.solution.num_packs for part in self._parts]
        if self.items.copy is not None or self._kept is not None or None in known:
            return self._compose(epoch)[0].num_packs
        return sum(one for one in known if one is not None)

    def _solve(self) -> list[_Group]:
        parts = []
        self.groups, codes = self._group_codes()
        for code, name in enumerate(self.groups or [""]):
            chosen = (
                np.arange(self.items.num_items, dtype=np.int32)
                if codes is None
                else np.flatnonzero(codes == code).astype(np.int32)
            )
            if len(chosen):
                problem = self._problem(chosen)
                solution = solve(problem, self._options.strategy, self._key(name, 0))
                parts.append(_Group(code, name, chosen, problem, solution))
        return parts

    def _problem(self, chosen: Int32s) -> Problem:
        options, items = self._options, self.items
        all_of_them = len(chosen) == items.num_items
        caps = {}
        for name, most in options.caps.items():
            found = items.column(name)
            if found is not None:
                caps[name] = (found[0] if all_of_them else found[0][chosen], most)
        cost = items.column("vision_cost")
        values = None if cost is None or not cost[0].any() else cost[0]
        return Problem(
            items.padded if all_of_them else items.padded[chosen],
            options.planned_capacity,
            caps,
            values if values is None or all_of_them else values[chosen],
        )

    def _compose(self, epoch: int) -> tuple[Slots, Int32s]:
        """Every item's place, packs numbered group by group, and the group of each pack."""
        found, groups = [], []
        for part in self._parts:
            slots = self._separated(part, part.solution.slots(self._key(part.name, epoch)))
            if len(self._parts) > 1:
                slots = slots.with_items(part.items[slots.item])
            found.append(slots)
            groups.append(np.full(slots.num_packs, part.code, np.int32))
        slots = found[0] if len(found) == 1 else joined(found)
        group = np.concatenate([*groups, np.empty(0, np.int32)])
        return (slots, group) if self._kept is None else self._drawn(slots, group)

    def _drawn(self, slots: Slots, group: Int32s) -> tuple[Slots, Int32s]:
        """The packs that `keep` leaves, numbered anew."""
        kept = self._kept
        assert kept is not None
        chosen = kept[slots.pack]
        numbers = np.cumsum(kept, dtype=np.int32) - 1
        pack, position = numbers[slots.pack[chosen]], slots.position[chosen]
        return Slots(slots.item[chosen], int(kept.sum()), (pack, position)), group[kept]

    def _key(self, group: str, epoch: int) -> int:
        epoch = 0 if self._kept is not None else epoch
        return derive_key(self._options.seed, "samples", self.number, epoch, group)

    def _shares(self, slots: Slots, sums: dict[str, Int64s]) -> list[Int64s]:
        """Tokens of each pack whose share of a step is to vary little: visual, and by source."""
        known = [sums[name] for name in ("image_tokens", "video_tokens") if name in sums]
        shares = [sum(known[1:], known[0])] if known and any(one.any() for one in known) else []
        rows = self.items.rows
        if "source" not in rows.frame.columns:
            return shares
        codes, names = _codes(rows, "source")
        of_item = codes[self.items.row[slots.item]]
        length = self.items.length[slots.item]
        totals = np.bincount(of_item, length, len(names))
        for code in np.argsort(-totals, kind="stable")[: _SOURCES if len(names) > 1 else 0]:
            tokens = np.where(of_item == code, length, 0)
            shares.append(np.bincount(slots.pack, tokens, slots.num_packs).astype(np.int64))
        return shares

    def _separated(self, part: _Group, slots: Slots) -> Slots:
        """`slots` with copies of one sample in packs of their own."""
        if self.items.copy is None:
            return slots
        sizes, limits, _ = part.problem.sizes()
        sample = self.items.row[part.items].astype(np.int64)
        return keep_apart(slots, sample, sizes, limits, derive_key(self._options.seed, "apart"))

    def _group_codes(self) -> tuple[list[str], Int32s | None]:
        """Names of the groups, and the group of each item; none where all may share packs."""
        kind = self._options.group_by
        rows, items = self.items.rows, self.items.row
        if kind is None or not len(items):
            return [], None
        if kind == "source":
            _need(rows, "source", kind)
            codes, names = _codes(rows, "source")
            codes = codes[items]
        else:
            _need(rows, "num_images", kind)
            names = list(_MEDIA_TYPES)
            images, _ = rows.ints("num_images", items)
            videos, _ = rows.ints("num_videos", items)
            codes = (images > 0).astype(np.int32) + 2 * (videos > 0).astype(np.int32)
        return names, codes.astype(np.int32)


def _codes(rows: LengthsRows, name: str) -> tuple[Int32s, list[str]]:
    """A column of text as numbers into its sorted distinct values, int32 [n]; null is empty."""
    column = rows.frame.get_column(name).fill_null("")
    names = column.unique().sort().to_list()
    return column.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy(), names


def _need(rows: LengthsRows, column: str, kind: str) -> None:
    if column not in rows.frame.columns:
        raise OptionError(
            f"group-by {kind} needs the column `{column}`, which {rows.uri} does not have: leave "
            "it out, or estimate the lengths with packidx"
        )
