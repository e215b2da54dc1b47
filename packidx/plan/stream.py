"""The strategy ``stream:RULE``: the packs that a stream of these records would give out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.format.stream import STREAM, StreamRule
from packidx.lengths.table import Lengths
from packidx.pack.slots import Slots
from packidx.pack.solve import Problem, bound_of
from packidx.pack.streams import Deal, Packed, Sizes, default_lanes, most_copies, pack_all
from packidx.plan.select.items import Items


@dataclass(frozen=True, slots=True)
class ListedSolution:
    """Packs that are given one by one, the same whatever the key.

    Attributes:
        strategy: name of the rule.
        bound: packs that no plan can go below, and the name of the proof.
        item: int64 [n], pack after pack, in each in the order in which they come.
        sizes: int64 [packs], items of each.
    """

    strategy: str
    bound: tuple[int, str]
    item: Int64s
    sizes: Int64s

    @property
    def num_packs(self) -> int:
        """Packs that there are."""
        return len(self.sizes)

    def slots(self, problem: Problem, key: int) -> Slots:
        """The items' slots, whatever the key."""
        pack = np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)
        first = np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        position = (np.arange(len(self.item)) - first).astype(np.int32)
        return Slots(self.item.astype(np.int32), len(self.sizes), (pack, position))


def is_stream(options: Options) -> bool:
    """Return whether a plan is what a stream would give out."""
    return options.strategy.startswith(STREAM)


def resolved(options: Options, lanes: int | None, table: Lengths, num_windows: int) -> Options:
    """`options` of a stream with its lanes, in the order of its places.

    Raises:
        OptionError: an option that a stream has not.
    """
    rule = StreamRule.parse(options.strategy)
    rule.check(options.max_images)
    refused = {
        "group-by": options.group_by is not None,
        f"on-long {options.on_long}": options.on_long in ("split", "truncate"),
        "window": num_windows > 1,
    }
    for name, is_asked in refused.items():
        if is_asked:
            raise OptionError(
                f"strategy {options.strategy} packs one record after another, all in"
                f" one window: leave {name} out"
            )
    if table.manifest is None:
        raise OptionError(
            f"strategy {options.strategy} needs to know the records of {table.uri}: count them with"
            " `packidx estimate`"
        )
    if lanes is None:
        tokens = sum(source.num_tokens or 0 for source in table.manifest.sources)
        lanes = rule.lanes or default_lanes(tokens, options.capacity)
    strategy = str(StreamRule(rule.name, rule.number, lanes))
    return replace(options, strategy=strategy, schedule="random")


def solve_stream(items: Items, problem: Problem, options: Options) -> ListedSolution:
    """Run every lane over the items of a table that is one window.

    Raises:
        OptionError: the rule has no meaning under these caps.
    """
    rule = StreamRule.parse(options.strategy)
    assert rule.lanes is not None
    copies = np.bincount(items.row, minlength=items.rows.num_rows)
    first = np.cumsum(copies) - copies
    sizes, limits, _ = problem.sizes()
    cost = problem.vision_cost

    def measure(row: int, copy: int) -> tuple[Sizes, int]:
        item = first[row] + copy
        return tuple(sizes[item].tolist()), 0 if cost is None else int(cost[item])

    deal = Deal(copies, rule.lanes, options.seed, most=most_copies(options.weights))
    packed: Packed = pack_all(rule, tuple(limits.tolist()), deal, rule.lanes, measure)
    item = first[packed.row] + packed.copy
    return ListedSolution(options.strategy, bound_of(problem), item, packed.sizes)
