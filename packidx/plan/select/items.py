"""What is to be packed: whole samples, copies of them, pieces of long ones; the rest is dropped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.format.index import Options
from packidx.lengths.rows import LengthsRows


@dataclass(frozen=True, slots=True)
class Folded:
    """Items some of which are pairs, arrays ``[n]``.

    Attributes:
        is_pair: bool.
        length, padded: int32, of the item's first sample: of a pair, the chosen side.
    """

    is_pair: Bools
    length: Int32s
    padded: Int32s

    def select(self, keep: Bools) -> Folded:
        """Return the items that `keep` marks."""
        return Folded(self.is_pair[keep], self.length[keep], self.padded[keep])

    def first_samples(self) -> Int64s:
        """The number of each item's first sample, int64 [n], where all samples are counted."""
        sizes = 1 + self.is_pair.astype(np.int64)
        return np.cumsum(sizes) - sizes

    def samples_of(self, items: Ints) -> tuple[Int64s, Int64s]:
        """The numbers of the samples of `items`, one item after the other, and how many each has:
        both int64."""
        sizes = 1 + self.is_pair[items].astype(np.int64)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        second = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
        return self.first_samples()[items][owner] + second, sizes


def fold(
    rows: LengthsRows,
    row: Int32s,
    num_whole: int,
    lengths: tuple[Int32s, Int32s],
    weight: Int32s,
    options: Options,
) -> tuple[Int32s, Int32s, Folded]:
    """Length and padded length of items with the rejected sides of pairs, and what they were made
    of.

    Args:
        row: int32 [n], rows of the items; of pairs, those of the chosen sides.
        num_whole: as of `Items`.
        lengths: length and padded length of those rows or pieces, int32 [n].
        weight: int32 [rows], tokens of every row.
    """
    is_chosen = np.zeros(rows.num_rows, bool)
    is_chosen[rows.chosen] = True
    is_pair = is_chosen[row]
    is_pair[num_whole:] = False
    rejected = np.where(is_pair, weight[np.minimum(row + 1, rows.num_rows - 1)], 0)
    rejected = rejected.astype(np.int32)
    length, padded = lengths
    sums = length + rejected
    plain = padded is length
    both = sums if plain else padded + options.padded(rejected)
    return sums, both, Folded(is_pair, length, padded)


def of_pairs(rows: LengthsRows, values: Ints) -> Ints:
    """`values` of every row, [n]; of both sides of a pair the sum over the two."""
    if not len(rows.chosen):
        return values
    sums = values.copy()
    sums[rows.chosen] += values[rows.chosen + 1]
    sums[rows.chosen + 1] = sums[rows.chosen]
    return sums


def paired_rows(rows: LengthsRows) -> Bools:
    """bool [rows], which are a side of a pair."""
    paired = np.zeros(rows.num_rows, bool)
    paired[rows.chosen] = paired[rows.chosen + 1] = True
    return paired


_COLUMNS = ("row", "length", "padded", "copy", "piece", "token_start")  # and `folded`
_NONE = np.empty(0, np.int64)


@dataclass
class Items:
    """The units that the strategy packs, in order of (row, copy, piece).

    Attributes:
        row: int32 [n] into `rows` of the lengths table.
        length: int32 [n], tokens of the piece.
        padded: int32 [n], tokens that it takes in its pack.
        copy, piece, token_start: int32 [n], or None where all are 0.
        num_whole: number of items, the first ones, that are whole samples; pieces follow.
        cut: counters of the pieces: name -> (values, is unknown).
        left_out: rows of packed samples of which no piece has some tokens, int64, ascending, and
            how many, int64, of every copy: behind a truncation, and media longer than a piece.
        num_eligible: tokens of all eligible samples (`packidx.format.terms`), each counted once.
        lost: rows of which tokens are lost, int64, ascending, and how many, int64.
        folded: which items are preference pairs, two rows each; None where none is.
    """

    rows: LengthsRows
    row: Int32s
    length: Int32s
    padded: Int32s
    copy: Int32s | None = None
    piece: Int32s | None = None
    token_start: Int32s | None = None
    num_whole: int = 0
    cut: dict[str, tuple[Int64s, Bools]] = field(default_factory=dict)
    left_out: tuple[Int64s, Int64s] = field(default_factory=lambda: (_NONE, _NONE))
    num_eligible: int = 0
    lost: tuple[Int64s, Int64s] = field(default_factory=lambda: (_NONE, _NONE))
    folded: Folded | None = None

    @property
    def num_items(self) -> int:
        return len(self.row)

    @cached_property
    def are_all_rows(self) -> bool:
        """Return whether item i is the whole of row i, for all of them."""
        last = self.num_items - 1
        same = self.num_items == self.rows.num_rows and self.num_whole == self.num_items
        return same and (last < 0 or bool((self.row == np.arange(last + 1)).all()))

    def column(self, name: str) -> tuple[Int64s, Bools | None] | None:
        """Counter `name` of every item and where it is unknown; None where it is nowhere known."""
        if name == "num_samples":
            ones = np.ones(self.num_items, np.int64)
            return ones if self.folded is None else ones + self.folded.is_pair, None
        if name not in self.rows.frame.columns:
            return None
        values, null = self.whole(name, slice(self.num_whole))
        if self.num_whole == self.num_items:
            return values, null
        more, unknown = self.cut[name]
        null = np.zeros(len(values), bool) if null is None else null
        return np.concatenate([values, more]), np.concatenate([null, unknown])

    def whole(self, name: str, items: slice = slice(None)) -> tuple[Int64s, Bools | None]:
        """Counter `name` of the whole samples of some items, of pairs of both; and where it is
        unknown."""
        row = self.row[items]
        values, null = self.rows.ints(name, row)
        if self.folded is None:
            return values, null
        pairs = np.flatnonzero(self.folded.is_pair[items])
        rejected, unknown = self.rows.ints(name, row[pairs] + 1)
        values = values.copy()
        values[pairs] += rejected
        if unknown is not None:
            null = np.zeros(len(values), bool) if null is None else null.copy()
            null[pairs] |= unknown
        return values, null

    @property
    def squares(self) -> NDArray[np.float64]:
        """float64 [n], the sum of the squared lengths of an item's samples."""
        length = self.length.astype(np.float64)
        if self.folded is None:
            return length**2
        first = self.folded.length.astype(np.float64)
        return np.asarray(first**2 + (length - first) ** 2)

    @cached_property
    def samples(self) -> Items:
        """The items as they are written: each side of a pair by itself."""
        if self.folded is None:
            return self
        number, _ = self.folded.samples_of(np.arange(self.num_items))
        owner = np.repeat(np.arange(self.num_items), 1 + self.folded.is_pair)
        is_second = number != self.folded.first_samples()[owner]
        columns = {name: getattr(self, name) for name in _COLUMNS}
        columns = {name: values[owner] for name, values in columns.items() if values is not None}
        columns["row"] = columns["row"] + is_second.astype(np.int32)
        for name, of_first in (("length", self.folded.length), ("padded", self.folded.padded)):
            columns[name] = np.where(is_second, columns[name] - of_first[owner], of_first[owner])
        if self.padded is self.length:
            columns["padded"] = columns["length"]
        num_whole = self.num_whole + int(self.folded.is_pair.sum())
        return replace(self, **columns, num_whole=num_whole, folded=None)

    def rows_of(self, items: Ints) -> Int32s:
        """The rows of some items, int32, those of both sides of pairs among them."""
        if self.folded is None:
            return self.row[items]
        return self.samples.row[self.folded.samples_of(items)[0]]

    def select(self, keep: Bools) -> Items:
        """Return the items that `keep` marks."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        kept = {name: values[keep] for name, values in columns.items() if values is not None}
        pieces = keep[self.num_whole :]
        cut = {name: (values[pieces], null[pieces]) for name, (values, null) in self.cut.items()}
        rows, tokens = self.left_out
        has_items = np.isin(rows, self.row[keep])
        return replace(
            self,
            **kept,
            num_whole=int(keep[: self.num_whole].sum()),
            cut=cut,
            left_out=(rows[has_items], tokens[has_items]),
            folded=None if self.folded is None else self.folded.select(keep),
        )
