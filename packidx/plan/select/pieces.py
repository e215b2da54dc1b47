"""Long samples as pieces: chunks of the capacity, never cut inside a medium.

Best-fit packing of long text (Ding et al., Fewer Truncations Improve Language Modeling, 2024,
arXiv 2404.10830): a text is cut into chunks of the capacity, and its last, shorter one is packed
like any other sample. A cut that would fall inside a medium moves to the medium's start. Each piece
is as long as it can be, so there are as few of them as cuts outside of media allow. A medium that
is longer than a piece may be is in none, and the next piece begins behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.arrays import Bools, Int64s, Ints
from packidx.errors import FormatError
from packidx.format.schema import SUMMED
from packidx.lengths.rows import LengthsRows

SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")

Columns = TypeVar("Columns", bound=NamedTuple)
"""Arrays ``[n]``, of which each has something of pair i."""


def select(columns: Columns, chosen: Any) -> Columns:
    """Some of the pairs, or all in another order: by a mask or by numbers."""
    return columns._make(values[chosen] for values in columns)


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """The pairs of all parts, of which there is one at least, one after the other."""
    return parts[0]._make(np.concatenate(values) for values in zip(*parts, strict=True))


def keys(first: Int64s, second: Ints) -> Int64s:
    """Pairs of numbers below 2^31 as one number each, in the same order."""
    return first << 32 | second


def changes(values: Int64s) -> Bools:
    """bool [n]: where another value begins."""
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def expand_ranges(first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The numbers ``first[i] .. last[i] - 1`` of all i, one after the other, and the i of each."""
    sizes = last - first
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(owner)) + (first - np.cumsum(sizes) + sizes)[owner], owner


_KINDS = ("image", "video", "audio")


class Stretches(NamedTuple):
    """Tokens ``start .. stop - 1`` of copies of rows, to be cut into pieces: int64 ``[n]``, in
    order of (row, copy, start).

    `first_piece` is the lowest piece number of that copy that is free.
    """

    row: Int64s
    copy: Int64s
    start: Int64s
    stop: Int64s
    first_piece: Int64s

    @classmethod
    def none(cls) -> Stretches:
        return cls(*[np.empty(0, np.int64)] * len(cls._fields))


class Pieces(NamedTuple):
    """Pieces and what each holds, arrays ``[n]``; `sums`: counter -> (values, is unknown)."""

    row: Int64s
    copy: Int64s
    piece: Int64s
    token_start: Int64s
    length: Int64s
    sums: dict[str, tuple[Int64s, Bools]]


class _Media(NamedTuple):
    """Media of some rows whose first token is stated, int64 ``[n]``, in order of `row`.

    `row` is a number in those rows, `kind` one in `_KINDS` or beyond.
    """

    row: Int64s
    kind: Int64s
    at: Int64s
    tokens: Int64s
    patches: Int64s
    t: Int64s


def cut_into_pieces(
    rows: LengthsRows, stretches: Stretches, longest: int, *, only_first: bool, shift: bool
) -> tuple[Pieces, Int64s]:
    """Cut every stretch into pieces of at most `longest` tokens; keep all, or the first alone.

    Args:
        shift: whether token t of a stretch is trained to predict token t + 1 of its sample.

    Returns:
        the pieces, and the rows that have none: where their media stand is unknown, or they begin
        with a medium that is too long (`only_first`), or hold nothing else.
    """
    chosen = np.unique(stretches.row)
    media, unknown = _media_of(rows, chosen)
    known = select(stretches, ~np.isin(stretches.row, chosen[unknown]))
    blocks = _blocks(media)
    owner = np.searchsorted(chosen, known.row)
    pieces = _chunks(known, owner, blocks, longest, only_first=only_first)
    failed = np.setdiff1d(chosen, pieces.row)
    owner = np.searchsorted(chosen, pieces.row)
    counted = _sums(pieces, owner, media)
    present = set(rows.frame.columns)
    sums = {}
    for name in SUMMED:
        sums[name] = counted[name], np.full(len(pieces.row), name not in present)
    first, last = pieces.token_start + 1, _ends(pieces) + shift
    sums["label_tokens"] = label_tokens(rows, pieces.row, first, last)
    return pieces._replace(sums=sums), failed


class _Blocks(NamedTuple):
    """Tokens that no cut may part, in order and apart: places as of `keys`, int64 ``[n]``."""

    start: Int64s
    stop: Int64s


def _blocks(media: _Media) -> _Blocks:
    """The media; those that overlap, as a table of one's own may have them, are one block."""
    start = keys(media.row, media.at)
    order = np.argsort(start, kind="stable")
    start, stop = start[order], (start + media.tokens)[order]
    reach = np.maximum.accumulate(stop)
    begins = np.ones(len(start), bool)
    begins[1:] = start[1:] >= reach[:-1]
    ends = np.append(begins[1:], True)[: len(start)]
    return _Blocks(start[begins], reach[ends])


def _chunks(
    stretches: Stretches, owner: Int64s, blocks: _Blocks, longest: int, *, only_first: bool
) -> Pieces:
    """The pieces of all stretches, numbered on in each copy; nothing is summed up yet.

    Each round places the next piece of every stretch that has tokens left.

    Args:
        owner: number of each stretch's row as `blocks` has it, int64 [n].
    """
    left = np.flatnonzero(stretches.start < stretches.stop)
    begin, end = keys(owner, stretches.start), keys(owner, stretches.stop)
    base = keys(owner, np.zeros_like(owner))
    rounds: list[tuple[Int64s, Int64s, Int64s]] = []
    while len(left):
        start = begin[left]
        stop = np.minimum(start + longest, end[left])
        block = np.searchsorted(blocks.start, stop) - 1  # the last one that begins before `stop`
        inside = block >= 0
        inside[inside] = blocks.stop[block[inside]] > stop[inside]
        stop[inside] = blocks.start[block[inside]]
        is_piece = stop > start
        rounds.append((left[is_piece], start[is_piece], stop[is_piece]))
        if only_first:
            break
        stop[~is_piece] = blocks.stop[block[~is_piece]]  # a block that is too long is left out
        begin[left] = stop
        left = left[stop < end[left]]
    number, start, stop = (
        np.concatenate(values) if rounds else np.empty(0, np.int64)
        for values in (zip(*rounds, strict=True) if rounds else [()] * 3)
    )
    order = np.argsort(number, kind="stable")
    number, length = number[order], (stop - start)[order]
    row, copy = stretches.row[number], stretches.copy[number]
    first = np.flatnonzero(changes(keys(row, copy)))
    sizes = np.diff(np.append(first, len(row)))
    piece = stretches.first_piece[number] + np.arange(len(row)) - np.repeat(first, sizes)
    return Pieces(row, copy, piece, start[order] - base[number], length, {})


def _sums(pieces: Pieces, owner: Int64s, media: _Media) -> dict[str, Int64s]:
    """The counters of every piece, in order of (row, copy, token_start): what begins in it.

    `owner` has the number of each piece's row as `media` has it, int64 [n].
    """
    begins_copy = changes(keys(pieces.row, pieces.copy))
    copy = np.cumsum(begins_copy) - 1
    first, last = (np.searchsorted(media.row, owner[begins_copy], side) for side in SIDES)
    medium, of_copy = expand_ranges(first, last)
    at = media.at[medium]
    piece = np.searchsorted(keys(copy, pieces.token_start), keys(of_copy, at), "right") - 1
    inside = piece >= 0
    inside[inside] = (copy[piece] == of_copy)[inside]
    inside[inside] = (at < _ends(pieces)[piece])[inside]
    piece, medium = piece[inside], medium[inside]
    kind, patches = media.kind[medium], media.patches[medium]

    def total(amounts: Int64s, mine: Bools | None = None) -> Int64s:
        sums = np.zeros(len(pieces.row), np.int64)
        np.add.at(sums, piece if mine is None else piece[mine], amounts)
        return sums

    counters = {name: np.zeros(len(pieces.row), np.int64) for name in SUMMED}
    for number, name in enumerate(_KINDS):
        mine = kind == number
        counters[f"{name}_tokens"] = total(media.tokens[medium][mine], mine)
        if f"num_{name}s" in counters:
            counters[f"num_{name}s"] = total(np.ones(int(mine.sum()), np.int64), mine)
    counters["vision_patches"] = total(patches)
    counters["vision_cost"] = total(patches * patches // np.maximum(media.t[medium], 1))
    return counters


def _media_of(rows: LengthsRows, numbers: Int64s) -> tuple[_Media, Int64s]:
    """Media of the rows `numbers`, and which of these hold some whose first token is unknown."""
    lists = rows.lists("media", numbers)
    if lists is None:
        empty = np.empty(0, np.int64)
        return _Media(*[empty] * len(_Media._fields)), np.flatnonzero(_may_hold(rows, numbers))
    sizes = lists.value_lengths().fill_null(0).to_numpy()
    owner = np.repeat(np.arange(len(numbers)), sizes)
    values = lists.flatten()  # of null lists, none
    stated = [values.field(name) for name in ("kind", "at", "tokens")]
    unstated = np.zeros(len(owner), bool)
    for column in stated:
        unstated |= column.is_null().to_numpy(zero_copy_only=False)
    names = pl.Series(pl.from_arrow(stated[0]))
    kind = np.full(len(owner), len(_KINDS))
    for number, name in enumerate(_KINDS):
        kind[(names == name).fill_null(False).to_numpy()] = number
    at, tokens, patches, t = (
        values.field(name).cast(pa.int64()).fill_null(0).to_numpy()
        for name in ("at", "tokens", "patches", "t")
    )
    unknown = np.unique(owner[unstated])
    null = lists.is_null().to_numpy(zero_copy_only=False)
    if null.any():
        missing = np.flatnonzero(null)
        may_hold = _may_hold(rows, numbers[missing], unlisted=True)
        unknown = np.union1d(unknown, missing[may_hold])
    return _Media(owner, kind, at, tokens, patches, t), unknown


def _may_hold(rows: LengthsRows, numbers: Int64s, *, unlisted: bool = False) -> Bools:
    """bool [n]: a counter of a row's media is above 0; or, of rows whose media are not listed
    though others' are, nothing says that there is no image and no video."""
    may = np.zeros(len(numbers), bool)
    for names in (
        ("audio_tokens",),
        ("num_images", "image_tokens"),
        ("num_videos", "video_tokens"),
    ):
        unstated = np.full(len(numbers), unlisted and len(names) > 1)
        for name in names:
            values, null = rows.ints(name, numbers)
            may |= values > 0
            unstated &= False if null is None else null
        may |= unstated
    return may


def _ends(pieces: Pieces) -> Int64s:
    return pieces.token_start + pieces.length


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
    owner, start, stop, known = _spans(rows, numbers)
    begins, sums = keys(owner, start), np.append(0, np.cumsum(stop - start))
    mine = np.searchsorted(numbers, row)

    def before(token: Int64s) -> Int64s:
        """Label tokens of all rows up to `mine` that stand before `token` of it."""
        at = np.searchsorted(begins, keys(mine, token))  # spans that begin before it
        reaching = (at > 0) & (owner[at - 1] == mine) if len(owner) else np.zeros(len(at), bool)
        over = np.zeros(len(at), np.int64)  # of the last one, what lies behind it
        over[reaching] = np.maximum(stop[at[reaching] - 1] - token[reaching], 0)
        return np.asarray(sums[at] - over)

    counts = np.where(known[mine], before(np.maximum(last, first)) - before(first), 0)
    return counts, ~known[mine]


def _spans(rows: LengthsRows, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s, Bools]:
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
    _check(rows, numbers, has_list & is_stated, labels, (listed, begin, end))
    added = ~known[listed]
    owner, start, stop = (
        np.concatenate(values)
        for values in ((owner, listed[added]), (start, begin[added]), (stop, end[added]))
    )
    order = np.lexsort((start, owner))
    return owner[order], start[order], stop[order], known | has_list


def _check(
    rows: LengthsRows,
    numbers: Int64s,
    is_known: Bools,
    labels: Int64s,
    spans: tuple[Int64s, Int64s, Int64s],
) -> None:
    """Raise a FormatError unless the spans of every row ascend within it and sum up to `labels`."""
    owner, start, stop = spans
    before = np.append(0, stop[:-1])[: len(stop)]
    before[np.append(True, owner[1:] != owner[:-1])[: len(stop)]] = 1  # nothing predicts token 0
    bad = (start < before) | (stop <= start) | (stop > rows.length[numbers[owner]])
    sums = np.zeros(len(numbers), np.int64)
    np.add.at(sums, owner, stop - start)
    wrong = np.union1d(owner[bad], np.flatnonzero(is_known & (sums != labels)))
    if len(wrong):
        raise FormatError(
            f"{rows.uri}: the label_spans of sample {rows.sample_id[numbers[wrong[0]]]} do not lie "
            "in it one behind the other, or are not its label_tokens in number "
            f"({len(wrong)} such samples): correct them"
        )
