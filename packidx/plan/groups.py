"""The groups of a window: items that may share packs, and how they are packed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from packidx.arrays import Int32s
from packidx.errors import OptionError
from packidx.lengths.rows import LengthsRows
from packidx.pack.solve import Problem, rounds_of
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.select.items import Items

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


def groups_of(items: Items, options: ResolvedOptions) -> tuple[list[str], list[Group]]:
    """Names of all groups, none where all items are one; and the groups that have items.

    Raises:
        OptionError: the lengths lack the column that groups are told apart by.
    """
    names, codes = _codes_of(items, options.group_by)
    groups = []
    for code, name in enumerate(names or [""]):
        chosen = (
            np.arange(items.num_items, dtype=np.int32)
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
    if kind is None or not items.num_items:
        return [], None
    if kind == "source":
        _need(rows, "source", kind)
        codes, names = column_codes(rows, "source")
        return names, codes[items.row]
    _need(rows, "num_images", kind)
    images, _ = items.whole("num_images")
    videos, _ = items.whole("num_videos")
    sounds, _ = items.whole("audio_tokens")
    held = [(values > 0).astype(np.int32) for values in (images, videos, sounds)]
    return list(_MEDIA_TYPES), held[0] + 2 * held[1] + 4 * held[2]


def _need(rows: LengthsRows, column: str, kind: str) -> None:
    if column not in rows.frame.columns:
        raise OptionError(
            f"group-by {kind} needs the column `{column}`, which {rows.uri} does not have: leave "
            "it out, or estimate the lengths with packidx"
        )


def _problem(items: Items, chosen: Int32s, options: ResolvedOptions) -> Problem:
    own = slice(None) if len(chosen) == items.num_items else chosen
    caps = {}
    for name, most in options.caps.items():
        column = items.column(name)
        if column is not None:
            caps[name] = column[0][own], most
    cost = items.column("vision_cost")
    values = None if cost is None or not cost[0].any() else cost[0][own]
    problem = Problem(items.padded[own], options.planned_capacity, caps, values)
    if items.copy is None:
        return problem
    sample, copy = items.row[own], items.copy[own]
    return replace(problem, sample=sample, rounds=rounds_of(sample, copy, options.seed))
