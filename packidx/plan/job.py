"""What decides one plan, all of it known before its first window is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from packidx.errors import OptionError
from packidx.format.index import Consumed, Options
from packidx.format.schema import MEDIA_COUNTERS
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.pack.streams import WINDOW
from packidx.plan.options import PlanOptions
from packidx.plan.resolved import with_defaults
from packidx.plan.select.consumed import continued
from packidx.plan.select.eligible import Rules, read_exclusion
from packidx.plan.select.mixture import SourceTotals, sample_ratios, weights_of
from packidx.plan.stream import check_stream
from packidx.plan.windows import WindowRange, shard_ends, windows_of

_RUN = 1 << 22  # rows that are in memory at a time
_MEDIA = ("media", *(name for names in MEDIA_COUNTERS for name in names))


@dataclass(frozen=True, slots=True)
class PlanJob:
    """All that decides one plan of the lengths in `table`, into the index at `output`.

    Attributes:
        recipe: the text of the recipe that asks for the plan.
    """

    table: Lengths
    output: str
    options: Options
    rules: Rules
    windows: Sequence[WindowRange]
    recipe: str | None = None

    def block(self, num_packs: int) -> int:
        """Packs of an optimizer step: as asked, else 512 or, of few packs, a smaller power of two;
        `num_packs` is of the first window that has some."""
        if self.options.global_batch is not None:
            return self.options.global_batch
        fitting = 1 << max(0, (num_packs * len(self.windows) // 8).bit_length() - 1)
        steps = self.options.micro_steps
        return max(steps, min(512, fitting) // steps * steps)


def prepare(
    table: Lengths,
    output: str,
    asked: PlanOptions,
    resume: tuple[Index, Mapping[str, Any]] | None,
    progress: Callable[[str], None],
) -> PlanJob:
    """Return what decides the plan of `table` under the options `asked`; arguments as of
    `plan_packs`.

    Raises:
        OptionError: an option has no meaning for these lengths.
        SourceError, FormatError, MismatchError: the lengths or a snapshot cannot be used.
    """
    options = with_defaults(asked, table.weakest_method)
    rules = Rules(None if asked.exclude is None else read_exclusion(asked.exclude))
    excluded = rules.exclude.fingerprint if rules.exclude else None
    continues: Consumed | None = None
    if resume is not None:
        progress("reading what training has had")
        rules, continues = continued(table, *resume, rules)
        excluded = excluded or resume[0].snapshot.options.excluded
    rows_of_window = asked.rows_of_window
    has_shards = bool(shard_ends(table))
    options = replace(
        options,
        window_shards=rows_of_window if has_shards else None,
        window_samples=None if has_shards else rows_of_window,
        weights=_weights(table, asked, options),
        excluded=excluded,
        continues=continues,
    )
    memory = asked.memory_bytes() if rows_of_window is None else None
    if options.lanes is None:
        windows = windows_of(table, options, memory)
    else:
        check_stream(options, table)
        windows = [WindowRange(0, 0, table.num_samples)]
        size = rows_of_window or WINDOW
        options = replace(options, window_shards=None, window_samples=size, schedule="random")
    return PlanJob(table, output, options, rules, windows)


def _weights(table: Lengths, asked: PlanOptions, options: Options) -> dict[str, str]:
    """Return how often samples of each source are seen per epoch, of sources not seen once."""
    sources = () if table.manifest is None else table.manifest.sources
    if not asked.mix and not sample_ratios(sources):
        return {}
    cuts = options.on_long in ("split", "truncate")
    totals = source_totals(table, options.longest, cuts_text=cuts)
    weights = weights_of(asked.mix, totals, sources)
    transform = None if table.manifest is None else table.manifest.transform
    for name, weight in weights.items():
        if Fraction(weight) > 1 and transform is not None and transform.is_random:
            raise OptionError(
                f"{name} has weight {weight}, and the transform {transform.name} makes different"
                " records of two copies of one: their lengths are not known. Give weights of at"
                " most 1, or write the transformed records to files and estimate these."
            )
    return weights


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
