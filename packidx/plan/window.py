"""One window: its items solved group by group, composed, scheduled."""

from __future__ import annotations

from collections.abc import Mapping
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
from packidx.lengths.table import Lengths, LengthsRows
from packidx.packing.slots import Slots, join_slots
from packidx.packing.solve import Problem, Solution, bound_of, solve_problem
from packidx.packing.streams import LaneOrder, expected_copies, most_copies, pack_window
from packidx.plan.align_media import divide_packs
from packidx.plan.curriculum import order_packs
from packidx.plan.job import WindowRange
from packidx.plan.schedule import schedule_packs
from packidx.plan.select.items import Items, make_items
from packidx.plan.select.rules import Rules

Sums = dict[str, tuple[Int64s, Bools | None]]
"""Column of the packs table -> sums of packs, int64 [n], and where a part is unknown."""


def sum_up(items: Items, slots: Slots, pad_to: int) -> Sums:
    """Counters of the packs that `slots` makes of `items`, padded to multiples of `pad_to`."""
    item = slots.item

    def sum_by_pack(values: NDArray[Any]) -> Int64s:
        # Sums below 2^53 are exact in the doubles that bincount adds.
        return np.bincount(slots.pack, values, slots.num_packs).astype(np.int64)

    if slots.sums is not None and items.padded is items.length:
        sizes, tokens, squares = slots.sums
    else:
        sizes = np.bincount(slots.pack, minlength=slots.num_packs)
        tokens, squares = sum_by_pack(items.length[item]), sum_by_pack(items.squares[item])
    padded = tokens if items.padded is items.length else sum_by_pack(items.padded[item])
    sums: Sums = {
        "num_samples": (sizes, None),
        "length": (tokens, None),
        "attention_cost": (squares, None),
        "padded_length": (-(-padded // pad_to) * pad_to, None),
    }
    for name in SUMMED:
        if (column := items.column(name)) is not None:
            values, null = column
            unknown = None
            if null is not None and null.any():
                unknown = np.bincount(slots.pack[null[item]], minlength=slots.num_packs) > 0
            sums[name] = (sum_by_pack(values[item]), unknown)
    return sums


_MEDIA_TYPES = (
    *("text", "image", "video", "image+video"),
    *("audio", "image+audio", "video+audio", "image+video+audio"),
)


def column_codes(rows: LengthsRows, name: str) -> tuple[Int32s, list[str]]:
    """A column of text as numbers into its sorted distinct values, int32 [n]; null is empty."""
    column = rows.frame.get_column(name).fill_null("")
    names = column.unique().sort().to_list()
    return column.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy(), names


def _codes_of(items: Items, kind: str | None) -> tuple[list[str], Int32s | None]:
    """Names of the groups, and the group of each item; none if all may share packs."""
    rows = items.rows
    if kind is None or not items.num_samples:
        return [], None
    if kind == "source":
        _require_column(rows, "source", "group-by source")
        codes, names = column_codes(rows, "source")
        return names, codes[items.row]
    _require_column(rows, "num_images", f"group-by {kind}")
    held = [
        (rows.ints(name, items.row)[0] > 0).astype(np.int32)
        for name in ("num_images", "num_videos", "audio_tokens")
    ]
    return list(_MEDIA_TYPES), held[0] + 2 * held[1] + 4 * held[2]


def _has_media(items: Items) -> Bools:
    """bool [items], True for samples with an image, a video or sound."""
    _require_column(items.rows, "num_images", "align-media")
    found = np.zeros(items.num_samples, bool)
    for name in ("num_images", "num_videos", "audio_tokens"):
        values, null = items.rows.ints(name, items.row)
        if null is not None and null.any() and name != "audio_tokens":
            raise OptionError(
                f"align-media: {int(null.sum()):,} samples of {items.rows.uri} do not say their"
                f" `{name}`: count them with `packidx estimate`"
            )
        found |= values > 0
    return found


def _require_column(rows: LengthsRows, column: str, option: str) -> None:
    if column not in rows.frame.columns:
        raise OptionError(
            f"{option} needs the column `{column}`, which {rows.uri} does not have: leave "
            "it out, or estimate the lengths with packidx"
        )


def _make_problem(items: Items, chosen: Int32s, options: Options) -> Problem:
    own = slice(None) if len(chosen) == items.num_samples else chosen
    caps = {name: (held[own], most) for name, (held, most) in items.caps(options).items()}
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
        group: int32 [packs], the group of each pack.
        slots: of all items.
        strategies: the rules that were taken, sorted.
        ranks: int64 [items], by which packs are sorted; None without a schedule ``by:COLUMN``.
        bounds: of each group, packs that no plan can go below, and the name of the proof.
    """

    window: WindowRange
    options: Options
    items: Items
    dropped: pa.Table
    group_names: list[str]
    group: Int32s
    slots: Slots
    strategies: tuple[str, ...]
    bounds: list[tuple[int, str]]
    ranks: Int64s | None = None

    @property
    def num_samples(self) -> int:
        """Samples of which any item is packed."""
        if self.items.copy is None and self.items.piece is None:
            return self.items.num_samples
        packed = np.zeros(self.items.rows.num_rows, bool)
        packed[self.items.row] = True
        return int(packed.sum())

    def ordered(self, block: int) -> tuple[Sums, Int32s, Int32s, float | None]:
        """Compose the packs and put them in order, `block` to an optimizer step.

        Returns:
            The packs, the group of each, the numbers in `items` of their samples, by pack and
            position, and how far the order of ranks was kept, if there are any.
        """
        slots, group, media = self.slots, self.group, None
        if self.options.align_media:
            has_media = _has_media(self.items)
            slots, origin = divide_packs(slots, has_media, block // self.options.micro_steps)
            group = group[origin]
            media = np.bincount(slots.pack, has_media[slots.item], slots.num_packs) > 0
        sums = sum_up(self.items, slots, self.options.pad_pack_to)
        totals = {name: values for name, (values, _) in sums.items()}
        if self.ranks is None:
            order, kept = self._schedule_packs(slots, totals, block, media), None
        else:
            costs = pack_cost(self.options.cost_model, totals)
            key = derive_key(self.options.seed, "packs", self.window.number, 0)
            steps = block, self.options.micro_steps
            order, kept = order_packs(slots, self.ranks, costs, steps, key)
        sums = {
            name: (values[order], None if null is None else null[order])
            for name, (values, null) in sums.items()
        }
        sizes = sums["num_samples"][0]
        first = np.empty(len(order), np.int64)
        first[order] = np.cumsum(sizes) - sizes
        ordered = np.empty(len(slots.item), np.int32)
        for chosen, pack, position in slots.chunks():
            ordered[first[pack] + position] = slots.item[chosen]
        return sums, group[order], ordered, kept

    def _schedule_packs(
        self, slots: Slots, sums: dict[str, Int64s], block: int, media: Bools | None
    ) -> Int64s:
        """Return the order of packs."""
        if self.options.lanes is not None:
            return np.arange(slots.num_packs)
        llm, vit = pack_cost(self.options.cost_model, sums)
        return schedule_packs(
            self.options.schedule,
            llm,
            vit,
            global_batch=block,
            micro_steps=self.options.micro_steps,
            key=derive_key(self.options.seed, "packs", self.window.number, 0),
            shares=self._tokens_by_source(slots, sums),
            media=media,
        )

    def _tokens_by_source(self, slots: Slots, sums: dict[str, Int64s]) -> list[Int64s]:
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
    unused = {"text_tokens", "num_turns", "method"}
    if rules.ranking is not None:
        unused.discard(rules.ranking.column)
    if options.on_long not in ("split", "truncate"):
        unused.add("label_spans")
    columns = [name for name in table.columns if name not in unused]
    rows = table.read(window.start, window.stop, columns)
    items, dropped = make_items(rows, options, rules)
    names, codes = _codes_of(items, options.group_by)
    solutions: list[Solution] = []
    group = [np.empty(0, np.int32)]
    for code, name in enumerate(names or [""]):
        chosen = np.arange(items.num_samples, dtype=np.int32)
        if codes is not None:
            chosen = chosen[codes == code]
        if not len(chosen):
            continue
        problem = _make_problem(items, chosen, options)
        key = derive_key(options.seed, "samples", window.number, 0, name)
        if options.lanes is not None and table.manifest is not None:
            sources = {source.name: source.num_samples for source in table.manifest.sources}
            solution = solve_stream(items, problem, options, sources)
        else:
            solution = solve_problem(problem, options.strategy, key)
        if codes is not None:
            slots = solution.slots
            solution = solution._replace(slots=slots.with_items(chosen[slots.item]))
        solutions.append(solution)
        group.append(np.full(solution.slots.num_packs, code, np.int32))
    slots = join_slots([solution.slots for solution in solutions])
    strategies = tuple(sorted({solution.strategy for solution in solutions}))
    bounds = [solution.bound for solution in solutions]
    numbers = np.concatenate(group)
    ranks = None if rules.ranking is None else rules.ranking.rank_samples(rows, items.row)
    return WindowPlan(
        window, options, items, dropped, names, numbers, slots, strategies, bounds, ranks
    )


def solve_stream(
    items: Items, problem: Problem, options: Options, sources: Mapping[str, int]
) -> Solution:
    """Pack every window of every lane, and list the packs by place; lanes that have ended are
    passed over.

    Args:
        sources: rows of each source in the lengths table.
    """
    assert options.lanes is not None and options.window_samples is not None
    copies = np.bincount(items.row, minlength=items.rows.num_rows)
    first = np.cumsum(copies) - copies
    weights = options.weights
    order = LaneOrder(
        copies,
        most_copies(weights),
        expected_copies(sources, weights),
        options.lanes,
        options.window_samples,
        options.seed,
    )
    packs: list[Int64s] = []
    turn: list[int] = []
    lane_of: list[int] = []
    for lane in range(options.lanes):
        own: list[Int64s] = []
        for number in range(order.num_windows):
            come = order.window(lane, number)
            item = first[come.row] + come.copy
            key = order.key(lane, number)
            own += [item[each] for each in pack_window(problem.select(item), options.strategy, key)]
        packs += own
        turn += range(len(own))
        lane_of += [lane] * len(own)
    by_place = np.lexsort((lane_of, turn)).tolist()
    sizes = np.array([len(packs[number]) for number in by_place], np.int64)
    item = np.concatenate([packs[number] for number in by_place])
    pack = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    position = (np.arange(len(item)) - np.repeat(np.cumsum(sizes) - sizes, sizes)).astype(np.int32)
    slots = Slots(item.astype(np.int32), len(sizes), (pack, position))
    return Solution(options.strategy, bound_of(problem), slots)
