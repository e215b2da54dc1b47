"""A plan with lanes: the packs that a stream gives out (`packidx.pack.streams`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.lengths.table import Lengths
from packidx.pack.slots import Slots
from packidx.pack.solve import Problem, Solution, bound_of
from packidx.pack.streams import LaneOrder, expected_copies, most_copies, pack_window
from packidx.plan.select.items import Items


def check_stream(options: Options, table: Lengths) -> None:
    """Refuse what a stream cannot do.

    Raises:
        OptionError: an option that streams do not have, or lengths without a manifest.
    """
    refused = {
        "--group-by": options.group_by is not None,
        f"--on-long {options.on_long}": options.on_long in ("split", "truncate"),
    }
    for name, is_asked in refused.items():
        if is_asked:
            raise OptionError(f"{name} cannot be combined with --lanes: streams do not have it")
    if table.manifest is None:
        raise OptionError(
            f"--lanes needs a lengths table with a manifest: count {table.uri} with"
            " `packidx estimate`"
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
