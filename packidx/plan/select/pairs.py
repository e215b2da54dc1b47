"""Pairs of integers in order, such as rows and their copies: arrays ``[n]``, no Python per pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from packidx.arrays import Bools, Int64s, Ints

SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")

Columns = TypeVar("Columns", bound=NamedTuple)
"""Arrays ``[n]``, of which each has something of pair i."""


def select(columns: Columns, chosen: Any) -> Columns:
    """Some of the pairs, or all in another order: by a mask or by numbers."""
    return columns._make(values[chosen] for values in columns)


def joined(parts: Sequence[Columns]) -> Columns:
    """The pairs of all parts, of which there is one at least, one after the other."""
    return parts[0]._make(np.concatenate(values) for values in zip(*parts, strict=True))


def in_order(first: Int64s, second: Int64s) -> tuple[Int64s, Int64s]:
    """The pairs sorted by `first`, then by `second`."""
    order = np.lexsort((second, first))
    return first[order], second[order]


def changes(first: Int64s, second: Int64s) -> Bools:
    """bool [n]: where another pair begins, of pairs of which equal ones are neighbours."""
    new = np.ones(len(first), bool)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return new


def distinct_pairs(first: Int64s, second: Int64s) -> tuple[Int64s, Int64s]:
    """Each pair once, of pairs of which equal ones are neighbours."""
    new = changes(first, second)
    return first[new], second[new]


def pairs_in(first: Int64s, second: Ints, others: Int64s, other_seconds: Ints) -> Bools:
    """bool [n]: the pair is one of the others, which are in order of their firsts."""
    low, high = (np.searchsorted(others, first, side) for side in SIDES)
    near, owner = expand_ranges(low, high)
    is_other = np.zeros(len(first), bool)
    is_other[owner[other_seconds[near] == second[owner]]] = True
    return is_other


def expand_ranges(first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The numbers ``first[i] .. last[i] - 1`` of all i, one after the other, and the i of each."""
    sizes = last - first
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(owner)) + (first - np.cumsum(sizes) + sizes)[owner], owner
