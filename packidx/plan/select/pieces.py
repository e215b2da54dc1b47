"""Long samples of text as pieces: chunks of the capacity.

Best-fit packing of long text (Ding et al., Fewer Truncations Improve Language Modeling, 2024,
arXiv 2404.10830): a text is cut into chunks of the capacity, and its last, shorter one is packed
like any other sample. A sample with media is never split, and is truncated only behind its last
medium. A piece without a label token is in no pack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packidx.arrays import Bools, Int64s
from packidx.lengths.table import LengthsRows


def join_keys(first: Int64s, second: Int64s) -> Int64s:
    """Pairs of numbers below 2^31 as one number each, in the same order."""
    return first << 32 | second


def expand_ranges(first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The numbers ``first[i] .. last[i] - 1`` of all i, one after the other, and the i of each."""
    sizes = last - first
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(owner)) + (first - np.cumsum(sizes) + sizes)[owner], owner


class Pieces(NamedTuple):
    """Pieces of samples, arrays ``[n]``, in order of (row, copy, piece)."""

    row: Int64s
    copy: Int64s
    piece: Int64s
    token_start: Int64s
    length: Int64s
    label_tokens: Int64s
    labels_unknown: Bools


class Uncut(NamedTuple):
    """Rows that have no piece, int64, by the reason for which they are dropped."""

    too_long: Int64s
    no_labels: Int64s


def cut_into_pieces(
    rows: LengthsRows, row: Int64s, copy: Int64s, longest: int, *, only_first: bool
) -> tuple[Pieces, Uncut]:
    """Cut copies of long rows into pieces of at most `longest` tokens; keep all, or the first.

    Pieces that are known to have no label token are left out.

    Args:
        row, copy: int64 [n], in order of (row, copy).
    """
    chosen = np.unique(row)
    has_media = rows.may_hold_media(chosen)
    fixed = chosen[has_media]
    if only_first:
        media = rows.lists("media", fixed)
        fixed = fixed[_media_ends(media, len(fixed)) > longest]
    is_cut = ~np.isin(row, fixed)
    row, copy = row[is_cut], copy[is_cut]
    sizes = rows.length[row].astype(np.int64)
    number = np.ones_like(sizes) if only_first else -(-sizes // longest)
    piece, owner = expand_ranges(np.zeros_like(number), number)
    start = piece * longest
    length = np.minimum(longest, sizes[owner] - start)
    labels, unknown = label_tokens(rows, row[owner], start + 1, start + length)
    is_trained = (labels > 0) | unknown
    columns = (row[owner], copy[owner], piece, start, length, labels, unknown)
    pieces = Pieces._make(values[is_trained] for values in columns)
    bare = np.setdiff1d(chosen, np.union1d(fixed, pieces.row))
    # A sample with media may only be cut where a label token is left.
    cut_bare = np.isin(bare, chosen[has_media])
    return pieces, Uncut(np.union1d(fixed, bare[cut_bare]), bare[~cut_bare])


def _media_ends(lists: pa.LargeListArray | None, number: int) -> Int64s:
    """The token behind the last medium of each of some rows, int64 [n]; beyond any sample where
    that is unknown."""
    ends = np.full(number, np.iinfo(np.int64).max)
    if lists is None:
        return ends
    sizes = lists.value_lengths().fill_null(0).to_numpy()
    owner, values = np.repeat(np.arange(number), sizes), lists.flatten()  # of null, none
    at, tokens = (values.field(name) for name in ("at", "tokens"))
    is_stated = (at.is_valid().to_numpy(False)) & (tokens.is_valid().to_numpy(False))
    at, tokens = (column.cast(pa.int64()).fill_null(0).to_numpy() for column in (at, tokens))
    last = np.zeros(number, np.int64)
    np.maximum.at(last, owner, at + tokens)
    is_known = sizes > 0
    is_known[owner[~is_stated]] = False
    return np.where(is_known, last, ends)


def label_tokens(
    rows: LengthsRows, row: Int64s, first: Int64s, last: Int64s
) -> tuple[Int64s, Bools]:
    """Label tokens among the tokens ``first .. last - 1`` of rows, and where that is unknown.

    Args:
        row, first, last: int64 [n].

    Raises:
        FormatError: spans of label tokens are not as FORMAT.md has them.
    """
    numbers = np.unique(row)
    owner, start, stop, known = _read_label_spans(rows, numbers)
    begins, sums = join_keys(owner, start), np.append(0, np.cumsum(stop - start))
    mine = np.searchsorted(numbers, row)

    def count_before(token: Int64s) -> Int64s:
        """Label tokens of all rows up to `mine` that stand before `token` of it."""
        at = np.searchsorted(begins, join_keys(mine, token))  # spans that begin before it
        reaching = (at > 0) & (owner[at - 1] == mine) if len(owner) else np.zeros(len(at), bool)
        over = np.zeros(len(at), np.int64)  # of the last one, what lies behind it
        over[reaching] = np.maximum(stop[at[reaching] - 1] - token[reaching], 0)
        return np.asarray(sums[at] - over)

    counts = np.where(known[mine], count_before(np.maximum(last, first)) - count_before(first), 0)
    return counts, ~known[mine]


def _read_label_spans(rows: LengthsRows, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s, Bools]:
    """Spans of label tokens of the rows `numbers`: number of the row in these, first token and the
    one after the last, int64 [m]; and bool [n], where they are known.

    Where no token is trained, or every one that can be, the sum says which.
    """
    labels, null = rows.ints("label_tokens", numbers)
    is_stated = np.ones(len(numbers), bool) if null is None else ~null
    length = rows.length[numbers].astype(np.int64)
    every = is_stated & (labels == length - 1) & (labels > 0)
    known = every | is_stated & (labels == 0)
    lists = rows.lists("label_spans", numbers)
    all_owner = np.flatnonzero(every)
    owner, start, stop = all_owner, np.ones_like(all_owner), length[all_owner]
    if lists is None:
        return owner, start, stop, known
    has_list = lists.is_valid().to_numpy(zero_copy_only=False)
    sizes = lists.value_lengths().fill_null(0).to_numpy()
    listed = np.repeat(np.arange(len(numbers)), sizes)
    begin, end = (
        lists.flatten().field(name).cast(pa.int64()).fill_null(-1).to_numpy()
        for name in ("start", "stop")
    )
    added = ~known[listed]
    owner, start, stop = (
        np.concatenate(values)
        for values in ((owner, listed[added]), (start, begin[added]), (stop, end[added]))
    )
    order = np.lexsort((start, owner))
    return owner[order], start[order], stop[order], known | has_list
