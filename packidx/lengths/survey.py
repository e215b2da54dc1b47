"""Totals of each source of a lengths table, which is what a mixture needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from packidx.format.schema import MEDIA_COUNTERS
from packidx.lengths.table import Lengths

_RUN = 1 << 22  # rows that are in memory at a time
_MEDIA = ("media", *(name for names in MEDIA_COUNTERS for name in names))


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """Usable samples of one source, added up.

    Attributes:
        num_samples: samples that are not rejected and have a length.
        num_tokens: Σ length.
    """

    num_samples: int = 0
    num_tokens: int = 0


def source_totals(
    lengths: Lengths, longest: int | None = None, *, cuts_text: bool = False
) -> dict[str | None, SourceTotals]:
    """Add up the usable samples of each source; a source without any is there too.

    Args:
        lengths: the table.
        longest: leave longer samples out.
        cuts_text: except those that are known to have no media.

    Raises:
        SourceError: a file cannot be read.
        FormatError: a value is not what the schema says.
    """
    totals: dict[str | None, SourceTotals] = {}
    columns = ["length", "source", "status", *(_MEDIA if cuts_text else ())]
    for start in range(0, lengths.num_samples, _RUN):
        rows = lengths.read(start, min(start + _RUN, lengths.num_samples), columns)
        is_usable = rows.is_ok() & (rows.length > 0)
        if longest is not None:
            long = np.flatnonzero(rows.length > longest)
            is_usable[long] &= ~rows.may_hold_media(long) if cuts_text else False
        has_source = "source" in rows.frame.columns
        source = rows.frame.get_column("source") if has_source else pl.lit(None, pl.String)
        tokens = np.where(is_usable, rows.length, 0).astype(np.int64)
        frame = pl.DataFrame({"number": is_usable, "tokens": tokens}).with_columns(source=source)
        for name, number, added in frame.group_by("source").sum().rows():
            known = totals.get(name, SourceTotals())
            totals[name] = SourceTotals(known.num_samples + number, known.num_tokens + added)
    return dict(sorted(totals.items(), key=lambda pair: (pair[0] is not None, pair[0] or "")))
