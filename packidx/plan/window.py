"""One window: its items solved group by group, composed, scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.format.schema import SUMMED
from packidx.hashing import derive_key
from packidx.index.cost import pack_cost
from packidx.lengths.rows import LengthsRows
from packidx.lengths.table import Lengths
from packidx.pack.slots import Slots, joined
from packidx.pack.solve import Problem, Solution, solve
from packidx.plan.job import WindowRange
from packidx.plan.schedule import schedule
from packidx.plan.select.eligible import Rules
from packidx.plan.select.items import Items, make_items
from packidx.plan.stream import ListedSolution, solve_stream


@dataclass(frozen=True, slots=True)
class Packs:
    """Counters of provisional packs, in any order: all arrays ``[n]``.

    Attributes:
        sizes: int64, samples in each.
        sums: column of the packs table -> (sums, where a part is unknown).
        group: int32, number in the window's groups.
    """

    sizes: Int64s
    sums: dict[str, tuple[Int64s, Bools | None]]
    group: Int32s

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, order: Int64s) -> Packs:
        """These packs in another order, or some of them."""
        sums = {
            name: (values[order], None if null is None else null[order])
            for name, (values, null) in self.sums.items()
        }
        return Packs(self.sizes[order], sums, self.group[order])


def sum_up(items: Items, slots: Slots, group: Int32s, pad_to: int) -> Packs:
    """Counters of the packs that `slots` makes of `items`, padded to multiples of `pad_to`."""
    item = slots.item

    def total(values: NDArray[Any]) -> Int64s:
        # Sums below 2^53 are exact in the doubles that bincount adds.
        return np.bincount(slots.pack, values, slots.num_packs).astype(np.int64)

    if slots.sums is not None and items.padded is items.length:
        sizes, tokens, squares = slots.sums
    else:
        sizes = np.bincount(slots.pack, minlength=slots.num_packs)
        tokens, squares = total(items.length[item]), total(items.squares[item])
    sums: dict[str, tuple[Int64s, Bools | None]] = {
        "length": (tokens, None),
        "attention_cost": (squares, None),
    }
    padded = tokens if items.padded is items.length else total(items.padded[item])
    sums["padded_length"] = (-(-padded // pad_to) * pad_to, None)
    for name in SUMMED:
        column = items.column(name)
        if column is None:
            continue
        values, null = column
        unknown = None
        if null is not None and null.any():
            unknown = np.bincount(slots.pack[null[item]], minlength=slots.num_packs) > 0
        sums[name] = (total(values[item]), unknown)
    return Packs(sizes, sums, group)


_MEDIA_TYPES = (
    *("text", "image", "video", "image+video"),
    *("audio", "image+audio", "video+audio", "image+video+audio"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Items of a window that may share packs: their numbers, and the problem of packing them.

    Attributes:
        code: number in the window's names of groups; 0 where there are none.
        name: empty where all items are one group.
        items: int32 [n].
    """

    code: int
    name: str
    items: Int32s
    problem: Problem


def groups_of(items: Items, options: Options) -> tuple[list[str], list[Group]]:
    """Names of all groups, none where all items are one; and the groups that have items.

    Raises:
        OptionError: the lengths lack the column that groups are told apart by.
    """
    names, codes = _codes_of(items, options.group_by)
    groups = []
    for code, name in enumerate(names or [""]):
        chosen = (
            np.arange(items.num_samples, dtype=np.int32)
            if codes is None
            else np.flatnonzero(codes == code).astype(np.int32)
        )
        if len(chosen):
            groups.append(Group(code, name, chosen, _problem(items, chosen, options)))
    return names, groups


def column_codes(rows: LengthsRows, name: str) -> tuple[Int32s, list[str]]:
    """A column of text as numbers into its sorted distinct values, int32 [n]; null is empty."""
    column = rows.frame.get_column(name).fill_null("")
    names = column.unique().sort().to_list()
    return column.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy(), names


def _codes_of(items: Items, kind: str | None) -> tuple[list[str], Int32s | None]:
    """Names of the groups, and the group of each item; none where all may share packs."""
    rows = items.rows
    if kind is None or not items.num_samples:
        return [], None
    if kind == "source":
        _need(rows, "source", kind)
        codes, names = column_codes(rows, "source")
        return names, codes[items.row]
    _need(rows, "num_images", kind)
    held = [
        (rows.ints(name, items.row)[0] > 0).astype(np.int32)
        for name in ("num_images", "num_videos", "audio_tokens")
    ]
    return list(_MEDIA_TYPES), held[0] + 2 * held[1] + 4 * held[2]


def _need(rows: LengthsRows, column: str, kind: str) -> None:
    if column not in rows.frame.columns:
        raise OptionError(
            f"group-by {kind} needs the column `{column}`, which {rows.uri} does not have: leave "
            "it out, or estimate the lengths with packidx"
        )


def _problem(items: Items, chosen: Int32s, options: Options) -> Problem:
    own = slice(None) if len(chosen) == items.num_samples else chosen
    caps = {}
    for name, most in options.caps.items():
        column = items.column(name)
        if column is not None:
            caps[name] = column[0][own], most
    cost = items.column("vision_cost")
    values = None if cost is None or not cost[0].any() else cost[0][own]
    return Problem(items.padded[own], options.planned_capacity, caps, values)


_SOURCES = 16  # the largest ones, whose shares the schedule looks at


@dataclass(frozen=True)
class WindowPlan:
    """The plan of one window: its samples, packed.

    Attributes:
        items: what is packed.
        dropped: table of what is not.
        group_names: empty where all items are one group.
        groups: those that have items.
        solutions: how each of them is packed.
    """

    window: WindowRange
    options: Options
    items: Items
    dropped: pa.Table
    group_names: list[str]
    groups: list[Group]
    solutions: Sequence[Solution | ListedSolution]

    @property
    def strategies(self) -> list[str]:
        """The rules that were taken."""
        return sorted({solution.strategy for solution in self.solutions})

    @property
    def num_samples(self) -> int:
        """Samples of which any item is packed."""
        if self.items.copy is None and self.items.piece is None:
            return self.items.num_samples
        packed = np.zeros(self.items.rows.num_rows, bool)
        packed[self.items.row] = True
        return int(packed.sum())

    def ordered(self, block: int) -> tuple[Packs, Int32s]:
        """Compose the packs and put them in order, `block` to an optimizer step.

        Returns:
            The packs, and the numbers in `items` of their samples, by pack and position.
        """
        slots, packs, order = self._scheduled(block)
        packs = packs.select(order)
        first = np.empty(len(order), np.int64)
        first[order] = np.cumsum(packs.sizes) - packs.sizes
        ordered = np.empty(len(slots.item), np.int32)
        for chosen, pack, position in slots.chunks():
            ordered[first[pack] + position] = slots.item[chosen]
        return packs, ordered

    @property
    def num_packs(self) -> int:
        """Packs of the window."""
        return sum(solution.num_packs for solution in self.solutions)

    def _scheduled(self, block: int) -> tuple[Slots, Packs, Int64s]:
        """Every item's slot in the packs, these, and the order in which they stand."""
        slots, group = self._compose()
        packs = sum_up(self.items, slots, group, self.options.pad_pack_to)
        sums = {name: values for name, (values, _) in packs.sums.items()}
        if self.options.lanes is not None:
            return slots, packs, np.arange(len(packs))
        llm, vit = pack_cost(self.options.cost_model, sums)
        order = schedule(
            self.options.schedule,
            llm,
            vit,
            global_batch=block,
            micro_steps=self.options.micro_steps,
            key=derive_key(self.options.seed, "packs", self.window.number, 0),
            shares=self._shares(slots, sums),
        )
        return slots, packs, order

    def _compose(self) -> tuple[Slots, Int32s]:
        """Every item's slot, packs numbered group by group, and the group of each pack."""
        composed, codes = [], []
        for group, solution in zip(self.groups, self.solutions, strict=True):
            key = derive_key(self.options.seed, "samples", self.window.number, 0, group.name)
            slots = solution.slots(group.problem, key)
            if len(self.groups) > 1:
                slots = slots.with_items(group.items[slots.item])
            composed.append(slots)
            codes.append(np.full(slots.num_packs, group.code, np.int32))
        slots = composed[0] if len(composed) == 1 else joined(composed)
        code = np.concatenate([*codes, np.empty(0, np.int32)])
        return slots, code

    def _shares(self, slots: Slots, sums: dict[str, Int64s]) -> list[Int64s]:
        """Tokens of each pack whose share of a step is to vary little: visual, and by source."""
        known = [sums[name] for name in ("image_tokens", "video_tokens") if name in sums]
        shares = [sum(known[1:], known[0])] if any(tokens.any() for tokens in known) else []
        rows = self.items.rows
        if "source" not in rows.frame.columns:
            return shares
        codes, names = column_codes(rows, "source")
        of_item = codes[self.items.row[slots.item]]
        length = self.items.length[slots.item]
        totals = np.bincount(of_item, length, len(names))
        for code in np.argsort(-totals, kind="stable")[: _SOURCES if len(names) > 1 else 0]:
            tokens = np.where(of_item == code, length, 0)
            shares.append(np.bincount(slots.pack, tokens, slots.num_packs).astype(np.int64))
        return shares


def plan_window(table: Lengths, window: WindowRange, options: Options, rules: Rules) -> WindowPlan:
    """Plan one window.

    Raises:
        OptionError, FormatError: an option has no meaning for these rows, or a value is wrong.
    """
    cuts = options.on_long in ("split", "truncate")
    rows = table.read(window.start, window.stop, _columns(table, cuts))
    items, dropped = make_items(rows, options, rules)
    names, groups = groups_of(items, options)
    keys = [derive_key(options.seed, "samples", window.number, 0, group.name) for group in groups]
    solutions: list[Solution | ListedSolution]
    if options.lanes is not None and table.manifest is not None:
        sources = {source.name: source.num_samples for source in table.manifest.sources}
        solutions = [solve_stream(items, g.problem, options, sources) for g in groups]
    else:
        solutions = [
            solve(group.problem, options.strategy, key)
            for group, key in zip(groups, keys, strict=True)
        ]
    return WindowPlan(window, options, items, dropped, names, groups, solutions)


def _columns(table: Lengths, cuts: bool) -> list[str]:
    """Return the columns that a plan looks at.

    Args:
        cuts: whether samples may be cut.
    """
    unused = {"text_tokens", "num_turns", "method"}.difference(SUMMED)
    if not cuts:
        unused.add("label_spans")
    return [name for name in table.columns if name not in unused]
