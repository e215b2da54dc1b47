"""Long samples as pieces: chunks of the capacity, never cut inside a medium.

Best-fit packing of long text (Ding et al., Fewer Truncations Improve Language Modeling, 2024,
arXiv 2404.10830): a text is cut into chunks of the capacity, and its last, shorter one is packed
like any other sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from packidx.plan.rows import Rows

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

SUMMED = (
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "num_images",
    "num_videos",
    "vision_patches",
    "vision_cost",
)
"""Counters of a sample that its pieces share out among them."""

Span = dict[str, int]


class Stretch(NamedTuple):
    """Tokens ``start .. stop - 1`` of one copy of a sample, to be cut into pieces.

    `first_piece` is the lowest piece number of that copy that is free.
    """

    row: int
    copy: int
    start: int
    stop: int
    first_piece: int


class Pieces(NamedTuple):
    """Pieces and what each holds, arrays ``[n]``; `sums`: counter -> (values, is unknown)."""

    row: Int64s
    copy: Int64s
    piece: Int64s
    token_start: Int64s
    length: Int64s
    sums: dict[str, tuple[Int64s, Bools]]


def cut(
    rows: Rows,
    stretches: list[Stretch],
    longest: int,
    *,
    only_first: bool,
    totals: NDArray[np.integer],
) -> tuple[Pieces, Int64s]:
    """Cut every stretch into pieces of at most `longest` tokens.

    Args:
        rows: of the lengths table.
        stretches: in order of (row, copy, start).
        only_first: keep the first piece alone: truncation.
        totals: int [rows], tokens of each whole sample.

    Returns:
        the pieces, and the rows that cannot be cut: a cut would fall inside a medium or may, as
        nobody says where it stands.
    """
    ids = np.array([one.row for one in stretches], np.int64)
    spans = dict(zip(ids.tolist(), _media_of(rows, ids), strict=True))
    found: list[tuple[int, int, int, int, int]] = []
    sums: list[dict[str, int | None]] = []
    failed: list[int] = []
    numbers: dict[tuple[int, int], int] = {}  # of the next piece of each copy
    for one in stretches:
        ends = list(range(one.start + longest, one.stop, longest)) + [one.stop]
        ends = ends[:1] if only_first else ends
        cuts = {one.start, *ends} - {0, int(totals[one.row])}
        media = spans[one.row]
        if media is None or any(_inside(at, span) for at in cuts for span in media):
            failed.append(one.row)
            continue
        begin = one.start
        name = one.row, one.copy
        first = numbers.get(name, one.first_piece)
        numbers[name] = first + len(ends)
        for number, end in enumerate(ends, first):
            found.append((one.row, one.copy, number, begin, end - begin))
            sums.append(_sums_between(media, begin, end))
            begin = end
    columns = np.array(found, np.int64).reshape(-1, 5).T
    shared = {name: _column(rows, sums, name) for name in SUMMED}
    row, copy, piece, start, length = columns
    return Pieces(row, copy, piece, start, length, shared), np.unique(np.array(failed, np.int64))


def _column(rows: Rows, sums: list[dict[str, int | None]], name: str) -> tuple[Int64s, Bools]:
    known = name in rows.frame.columns
    values = [one[name] if known else None for one in sums]
    null = np.array([value is None for value in values], bool)
    return np.array([value or 0 for value in values], np.int64), null


def _media_of(rows: Rows, numbers: Int64s) -> list[list[Span] | None]:
    """Media spans of each row; None where the table does not say where they stand."""
    if "media" in rows.frame.columns:
        column = rows.frame.get_column("media")
        lists = column.gather(pl.Series(numbers.astype(np.uint32))).to_list()
        return [
            None if spans is None or not all(map(_is_placed, spans)) else spans for spans in lists
        ]
    if any(name in rows.frame.columns for name in ("num_images", "num_videos")):
        images, _ = rows.ints("num_images", numbers)
        videos, _ = rows.ints("num_videos", numbers)
        return [None if count else [] for count in (images + videos).tolist()]
    return [[] for _ in numbers]  # a bare table knows of no media


def _is_placed(span: Mapping[str, int | None] | None) -> bool:
    return span is not None and None not in (span["kind"], span["at"], span["tokens"])


def _inside(at: int, span: Span) -> bool:
    return span["at"] < at < span["at"] + span["tokens"]


def _sums_between(spans: list[Span], start: int, end: int) -> dict[str, int | None]:
    """The counters of one piece; label tokens are known only once it is encoded."""
    sums: dict[str, int | None] = dict.fromkeys(SUMMED, 0)
    sums["label_tokens"] = None
    for span in spans:
        if not start <= span["at"] < end:
            continue
        kind, patches = span["kind"], span["patches"] or 0
        for name, amount in {
            f"{kind}_tokens": span["tokens"],
            f"num_{kind}s": 1,
            "vision_patches": patches,
            "vision_cost": patches * patches // max(span["t"] or 1, 1),
        }.items():
            if name in sums:
                sums[name] = (sums[name] or 0) + amount
    return sums
