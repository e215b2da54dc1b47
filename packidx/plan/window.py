"""One window: its items solved group by group, composed for every epoch, scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from packidx.arrays import Bools, Int32s, Int64s
from packidx.format.schema import SUMMED
from packidx.hashing import derive_key
from packidx.lengths.table import Lengths
from packidx.pack.slots import Slots, joined
from packidx.pack.solve import Solution, bound_of, solve, strategies_of
from packidx.plan.groups import Group, column_codes, groups_of
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.pack_sums import Packs, sum_up, with_length
from packidx.plan.schedule.cost_model import CostModel
from packidx.plan.schedule.pack_order import schedule
from packidx.plan.select.dropped import dropped_with
from packidx.plan.select.eligible import Rules
from packidx.plan.select.items import Items
from packidx.plan.select.make_items import make_items
from packidx.plan.windows import Window

_SOURCES = 16  # the largest ones, whose shares the schedule looks at


@dataclass(frozen=True, slots=True)
class Variant:
    """One epoch's packs of a window in their schedule's order."""

    packs: Packs
    ordered: Int64s
    """[n], samples by pack and position, numbers in `Items.samples`, as `with_length` has them."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """Some of a window's packs, which every epoch has.

    Attributes:
        kept: bool [packs], which provisional packs stay.
        stayed: int32 [n], the items in them.
        undrawn: int32 [n], the rows of which no item is in them.
    """

    kept: Bools
    stayed: Int32s
    undrawn: Int32s


@dataclass(frozen=True)
class WindowPlan:
    """How the samples of one window are packed.

    Attributes:
        items: what is packed.
        dropped: table of what is not.
        group_names: empty where all items are one group.
        groups: those that have items.
        solutions: how each of them is packed; `plan_window` takes them for the same rows again.
        draw: the packs that stay, where some are drawn.
    """

    window: Window
    options: ResolvedOptions
    items: Items
    dropped: pa.Table
    group_names: list[str]
    groups: list[Group]
    solutions: list[Solution]
    draw: _Draw | None = None

    @property
    def strategies(self) -> list[str]:
        """The rules that were taken."""
        return sorted(set().union(*map(strategies_of, self.solutions)))

    @property
    def num_samples(self) -> int:
        """Samples of which any item is packed."""
        items = self.items
        if items.copy is None and items.piece is None and self.draw is None:
            return items.samples.num_items
        packed = np.zeros(items.rows.num_rows, bool)
        packed[items.samples.row if self.draw is None else items.rows_of(self.draw.stayed)] = True
        return int(packed.sum())

    @property
    def num_lost(self) -> int:
        """Tokens that were to be packed and are not; of samples that are not drawn, none."""
        return self._of_drawn(*self.items.lost)

    @property
    def num_left_out(self) -> int:
        """Tokens of packed samples that are in no piece, of every copy."""
        return self._of_drawn(*self.items.left_out)

    def _of_drawn(self, rows: Int64s, tokens: Int64s) -> int:
        if self.draw is not None:
            tokens = tokens[~np.isin(rows, self.draw.undrawn)]
        return int(tokens.sum())

    @property
    def num_pieces(self) -> int:
        """Rows of the samples table in one epoch."""
        if self.draw is None:
            return self.items.samples.num_items
        return len(self.items.rows_of(self.draw.stayed))

    def bounds(self) -> list[tuple[int, str]]:
        """Lower bound of each group's packs in one epoch, and the name of its proof."""
        bounds = []
        for group, solution in zip(self.groups, self.solutions, strict=True):
            bound = solution.bound
            if self.draw is not None:
                stayed = np.isin(group.items, self.draw.stayed)
                bound = bound_of(group.problem.select(stayed)) if stayed.any() else (0, "volume")
            bounds.append(bound)
        return bounds

    def variant(self, epoch: int, block: int, model: CostModel) -> Variant:
        """Compose the packs of one epoch and put them in order, `block` to an optimizer step."""
        slots, group = self._compose(epoch)
        packs = sum_up(self.items, slots, group, self.options.pad_pack_to)
        sums = {name: values for name, (values, _) in packs.sums.items()}
        llm, vit = model.of(sums)
        order = schedule(
            self.options.schedule,
            llm,
            vit,
            global_batch=block,
            micro_steps=self.options.micro_steps,
            key=derive_key(self.options.seed, "packs", self.window.number, epoch),
            shares=self._shares(slots, sums),
        )
        packs = packs.select(order)
        first = np.empty(len(order), np.int64)
        first[order] = np.cumsum(packs.sizes) - packs.sizes
        ordered = np.empty(len(slots.item), np.int64)
        plain = self.items.padded is self.items.length
        for chunk in slots.chunks():
            item = slots.item[chunk.slots]
            known = chunk.length if plain else None
            length = self.items.length[item] if known is None else known
            ordered[first[chunk.pack] + chunk.position] = with_length(item, length)
        return unfolded(self.items, Variant(packs, ordered))

    def keep(self, packs: Bools) -> WindowPlan:
        """The plan with some of its provisional packs, bool [n], in every epoch; it drops the
        samples of the others."""
        slots, _ = self._compose(0)
        is_kept = packs[slots.pack]
        stayed = slots.item[is_kept]
        lost, kept = (
            np.unique(self.items.rows_of(items)) for items in (slots.item[~is_kept], stayed)
        )
        rows = np.setdiff1d(lost, kept, assume_unique=True)
        detail = f"not among the {self.options.max_packs} packs that were drawn"
        dropped = dropped_with(self.dropped, self.items.rows, rows, "max_packs", detail)
        return replace(self, dropped=dropped, draw=_Draw(packs, stayed, rows))

    def pack_sizes(self) -> Int64s:
        """Samples in each provisional pack, int64 [packs]."""
        slots, _ = self._compose(0)
        sizes = np.bincount(slots.pack, minlength=slots.num_packs)
        if self.items.folded is not None:
            pairs = self.items.folded.is_pair[slots.item]
            sizes += np.bincount(slots.pack[pairs], minlength=slots.num_packs)
        return sizes

    def num_packs(self, epoch: int = 0) -> int:
        """Packs of one epoch."""
        if self.draw is not None:
            return int(self.draw.kept.sum())
        known = [
            solution.num_packs(self._key(group.name, epoch))
            for group, solution in zip(self.groups, self.solutions, strict=True)
        ]
        if None not in known:
            return sum(number for number in known if number is not None)
        return self._compose(epoch)[0].num_packs

    def _compose(self, epoch: int) -> tuple[Slots, Int32s]:
        """Every item's slot, packs numbered group by group, and the group of each pack."""
        composed, codes = [], []
        for group, solution in zip(self.groups, self.solutions, strict=True):
            slots = solution.slots(group.problem, self._key(group.name, epoch))
            if len(self.groups) > 1:
                slots = slots.with_items(group.items[slots.item])
            composed.append(slots)
            codes.append(np.full(slots.num_packs, group.code, np.int32))
        slots = composed[0] if len(composed) == 1 else joined(composed)
        code = np.concatenate([*codes, np.empty(0, np.int32)])
        if self.draw is None:
            return slots, code
        kept = self.draw.kept
        chosen = kept[slots.pack]
        numbers = np.cumsum(kept, dtype=np.int32) - 1
        pack, position = numbers[slots.pack[chosen]], slots.position[chosen]
        return Slots(slots.item[chosen], int(kept.sum()), (pack, position)), code[kept]

    def _key(self, group: str, epoch: int) -> int:
        epoch = 0 if self.draw is not None else epoch
        return derive_key(self.options.seed, "samples", self.window.number, epoch, group)

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


def unfolded(items: Items, folded: Variant) -> Variant:
    """A variant of items as one of their samples: the sides of a pair follow each other."""
    if items.folded is None:
        return folded
    item = folded.ordered & 0xFFFFFFFF
    number, sizes = items.folded.samples_of(item)
    sums = np.append(0, np.cumsum(sizes))
    ends = np.cumsum(folded.packs.sizes)
    of_packs = sums[ends] - sums[ends - folded.packs.sizes]
    ordered = with_length(number.astype(np.int32), items.samples.length[number])
    return Variant(replace(folded.packs, sizes=of_packs), ordered)


def plan_window(
    table: Lengths,
    window: Window,
    options: ResolvedOptions,
    rules: Rules,
    solutions: Sequence[Solution] | None = None,
) -> WindowPlan:
    """Plan one window; with the `solutions` of an earlier plan of its very rows, none is solved.

    Raises:
        OptionError, FormatError: an option has no meaning for these rows, or a value is wrong.
    """
    cuts = options.on_long in ("split", "truncate") or rules.consumed is not None
    rows = table.read(window.start, window.stop, _columns(table, cuts))
    table.note(rows)
    items, dropped = make_items(rows, options, rules)
    names, groups = groups_of(items, options)
    if solutions is None:
        keys = [
            derive_key(options.seed, "samples", window.number, 0, group.name) for group in groups
        ]
        solutions = [
            solve(group.problem, options.strategy, key)
            for group, key in zip(groups, keys, strict=True)
        ]
    return WindowPlan(window, options, items, dropped, names, groups, list(solutions))


def _columns(table: Lengths, cuts: bool) -> list[str]:
    """Columns that a plan looks at; of a bare table all, for its fingerprint's sake.

    Args:
        cuts: whether samples may be cut.
    """
    unused = {"text_tokens", "num_turns", "method"}.difference(SUMMED)
    if not cuts:
        unused.add("label_spans")
    return [name for name in table.columns if table.manifest is None or name not in unused]
