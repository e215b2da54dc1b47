"""Long samples as pieces: chunks of the capacity, never cut inside a medium.

Best-fit packing of long text (Ding et al., Fewer Truncations Improve Language Modeling, 2024,
arXiv 2404.10830): a text is cut into chunks of the capacity, and its last, shorter one is packed
like any other sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.arrays import Bools, Int64s
from packidx.format.schema import SUMMED
from packidx.lengths.rows import LengthsRows
from packidx.plan.select.pairs import SIDES, changes, expand_ranges

_KINDS = ("image", "video", "audio")


class Stretches(NamedTuple):
    """Tokens ``start .. stop - 1`` of copies of samples, to be cut into pieces: int64 ``[n]``.

    `sample` is a row of the window, or a sample id; they are in order of (sample, copy, start).
    `first_piece` is the lowest piece number of that copy that is free.
    """

    sample: Int64s
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


def cut(
    rows: LengthsRows, stretches: Stretches, longest: int, *, only_first: bool
) -> tuple[Pieces, Int64s]:
    """Cut every stretch into pieces of at most `longest` tokens; keep all, or the first alone.

    Returns:
        the pieces, and the rows that cannot be cut: a cut would fall inside a medium or may, as
        nobody says where it stands.
    """
    chosen = np.unique(stretches.sample)
    media, unknown = _media_of(rows, chosen)
    pieces = _chunks(stretches, longest, only_first)
    owner = np.searchsorted(chosen, pieces.row)
    cuts = np.sort(_keys(np.r_[owner, owner], np.r_[pieces.token_start, _ends(pieces)]))
    first = _keys(media.row, media.at)
    following = np.searchsorted(cuts, first, "right")
    inside = following < len(cuts)
    inside[inside] = cuts[following[inside]] < (first + media.tokens)[inside]
    failed = chosen[np.unique(np.r_[unknown, media.row[inside]])]
    kept = ~np.isin(pieces.row, failed)
    row, copy, piece, start, length = (values[kept] for values in pieces[:5])
    pieces = Pieces(row, copy, piece, start, length, {})
    counted = _sums(pieces, np.searchsorted(chosen, pieces.row), media)
    present = set(rows.frame.columns)
    sums = {}
    for name in SUMMED:
        # Label tokens of a piece are known only once it is encoded.
        is_known = name in present and name != "label_tokens"
        sums[name] = counted[name], np.full(len(pieces.row), not is_known)
    return pieces._replace(sums=sums), failed


def _chunks(stretches: Stretches, longest: int, only_first: bool) -> Pieces:
    """The pieces of all stretches, numbered on in each copy; nothing is summed up yet."""
    tokens = stretches.stop - stretches.start
    counts = np.ones_like(tokens) if only_first else np.maximum(-(-tokens // longest), 1)
    owner = np.repeat(np.arange(len(tokens)), counts)
    firsts = np.cumsum(counts) - counts
    start = stretches.start[owner] + (np.arange(len(owner)) - firsts[owner]) * longest
    begins_copy = changes(stretches.sample, stretches.copy)
    lead = np.flatnonzero(begins_copy)[np.cumsum(begins_copy) - 1]  # first stretch of the copy
    piece = (stretches.first_piece - firsts)[lead][owner] + np.arange(len(owner))
    length = np.minimum(start + longest, stretches.stop[owner]) - start
    return Pieces(stretches.sample[owner], stretches.copy[owner], piece, start, length, {})


def _sums(pieces: Pieces, owner: Int64s, media: _Media) -> dict[str, Int64s]:
    """The counters of every piece, in order of (row, copy, token_start): what begins in it.

    `owner` has the number of each piece's row as `media` has it, int64 [n].
    """
    begins_copy = changes(pieces.row, pieces.copy)
    copy = np.cumsum(begins_copy) - 1
    first, last = (np.searchsorted(media.row, owner[begins_copy], side) for side in SIDES)
    medium, of_copy = expand_ranges(first, last)
    at = media.at[medium]
    piece = np.searchsorted(_keys(copy, pieces.token_start), _keys(of_copy, at), "right") - 1
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
    lists = rows.media_lists(numbers)
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
        unknown = np.union1d(unknown, missing[~_holds_none(rows, numbers[missing])])
    return _Media(owner, kind, at, tokens, patches, t), unknown


_COUNTERS: dict[str, tuple[str, ...]] = {
    "image": ("num_images", "image_tokens"),
    "video": ("num_videos", "video_tokens"),
    "audio": ("audio_tokens",),
}


def _may_hold(rows: LengthsRows, numbers: Int64s) -> Bools:
    """bool [n]: a counter of a row's media is above 0."""
    counters = [rows.ints(name, numbers)[0] for names in _COUNTERS.values() for name in names]
    return np.asarray(np.any([values > 0 for values in counters], axis=0))


def _holds_none(rows: LengthsRows, numbers: Int64s) -> Bools:
    """bool [n]: a row whose media are not listed says that it has no image and no video."""
    known = ~_may_hold(rows, numbers)
    for kind in ("image", "video"):
        stated = np.zeros(len(numbers), bool)
        for name in _COUNTERS[kind]:
            _, null = rows.ints(name, numbers)
            stated |= np.ones(len(numbers), bool) if null is None else ~null
        known &= stated
    return known


def _keys(owner: Int64s, token: Int64s) -> Int64s:
    """Places in samples as one number each, in order of (owner, token)."""
    return owner << 32 | token


def _ends(pieces: Pieces) -> Int64s:
    return pieces.token_start + pieces.length
