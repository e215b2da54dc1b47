"""Job of one plan: its options, rules and windows, all known before the first window is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from packidx.errors import OptionError
from packidx.format.index import Consumed, Options
from packidx.format.schema import MEDIA_COUNTERS, METHODS
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.packing.streams import WINDOW
from packidx.plan.curriculum import read_ranking
from packidx.plan.options import PlanOptions
from packidx.plan.resolved import with_defaults
from packidx.plan.select.mixture import SourceTotals, sample_ratios, weights_of
from packidx.plan.select.rules import Rules, continue_from, read_exclusion

# Of a plan too large for the memory limit. A sample's part of the work grows with the window, as
# arrays leave the cache, and a window's own part shrinks: 4 and 8 million cost the same, 16 more.
_LARGE = 1 << 23

# Measured peak of `packidx plan` per sample of a window, beyond what the modules take.
_BYTES = {"length": 90, "key": 60, "media": 0}
_OTHER_COLUMN = 12
_MEDIUM = 120  # and per medium of a sample
_FIXED = 400_000_000
_RUN = 1 << 22  # rows that are in memory at a time, of those that are only added up
_MEDIA = ("media", *(name for names in MEDIA_COUNTERS for name in names))


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Rows start .. stop - 1 of the lengths table."""

    number: int
    start: int
    stop: int


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


def prepare_job(
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
    options = with_defaults(asked, max(table.methods, key=METHODS.index, default="exact"))
    rules = Rules(None if asked.exclude is None else read_exclusion(asked.exclude))
    excluded = rules.exclude.fingerprint if rules.exclude else None
    continues: Consumed | None = None
    if resume is not None:
        progress("reading what training has had")
        rules, continues = continue_from(table, *resume, rules)
        excluded = excluded or resume[0].snapshot.options.excluded
    ranking = read_ranking(options.schedule, asked.order, table.columns)
    rules = replace_fields(rules, ranking=ranking)
    rows_of_window = asked.rows_of_window
    has_shards = bool(shard_ends(table))
    options = replace(
        options,
        window_shards=rows_of_window if has_shards else None,
        window_samples=None if has_shards else rows_of_window,
        weights=_resolve_weights(table, asked, options),
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
    if ranking is not None and len(windows) > 1:
        raise OptionError(
            f"--schedule {options.schedule} sorts all packs at once, and these samples are planned"
            f" in {len(windows)} windows: raise --window"
        )
    return PlanJob(table, output, options, rules, windows)


def check_stream(options: Options, table: Lengths) -> None:
    """Refuse what a stream cannot do.

    Raises:
        OptionError: an option that streams do not have, or lengths without a manifest.
    """
    refused = {
        "--memory": options.memory is not None,
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


def _resolve_weights(table: Lengths, asked: PlanOptions, options: Options) -> dict[str, str]:
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


def sources_of_bare(table: Lengths) -> list[dict[str, Any]]:
    """Add up the rows of each source of a table without a manifest, in the manifest's words."""
    if "source" not in table.columns:
        return []
    labels = pl.lit(None, pl.Int64)
    if "label_tokens" in table.columns:
        labels = pl.col("label_tokens").cast(pl.Int64)
    unknown = labels.is_null() & (pl.col("length") > 0)
    sums: dict[str, list[int]] = {}
    for start in range(0, table.num_samples, _RUN):
        stop = min(start + _RUN, table.num_samples)
        frame = table.read(start, stop, ["source", "label_tokens", "length"]).frame.lazy()
        # Columns first: older releases of Polars sum up no literal.
        columns = frame.select("source", labels.alias("sum"), unknown.alias("unknown"))
        grouped = columns.group_by("source").agg(pl.len(), pl.col("sum", "unknown").sum())
        for name, *more in grouped.collect().rows():
            if name is not None:
                before = sums.setdefault(name, [0, 0, 0])
                sums[name] = [one + other for one, other in zip(before, more, strict=True)]
    return [
        {
            "name": name,
            "media_root": None,
            "num_samples": samples,
            "num_label_tokens": None if unknown else labels,
        }
        for name, (samples, labels, unknown) in sorted(sums.items())
    ]


def windows_of(lengths: Lengths, options: Options, memory: int | None) -> list[WindowRange]:
    """Return the windows of a plan, sized to `memory` bytes unless `options` state their size."""
    limit = options.window_samples if memory is None else _rows_in_memory(lengths, memory)
    ends = shard_ends(lengths)
    if options.window_shards is not None:
        cuts = [*ends[options.window_shards - 1 :: options.window_shards], ends[-1]]
    elif limit is None:
        cuts = [lengths.num_samples]
    elif ends:  # runs of whole shards of at most `limit` samples, at least one shard each
        cuts, first = [], 0
        for end, after in zip(ends, [*ends[1:], None], strict=True):
            if after is None or after - first > limit:
                cuts.append(end)
                first = end
    else:
        cuts = [*range(limit, lengths.num_samples, limit), lengths.num_samples]
    windows: list[WindowRange] = []
    first = 0
    for stop in dict.fromkeys(cuts):
        if stop > first or not windows:
            windows.append(WindowRange(len(windows), first, stop))
            first = stop
    return windows


def _rows_in_memory(lengths: Lengths, memory: int) -> int | None:
    """Samples of a window for the memory limit; None if all fit at once."""
    each = sum(_BYTES.get(name, _OTHER_COLUMN) for name in lengths.columns)
    each += -(-_MEDIUM * lengths.num_media // lengths.num_samples)
    most = max(1 << 16, (memory - _FIXED) // each)
    return None if lengths.num_samples <= most else min(_LARGE, most)


def shard_ends(lengths: Lengths) -> list[int]:
    """Return the row after each shard; empty if the table does not name the shards of all rows."""
    ends = list(accumulate(shard.rows for shard in lengths.shards))
    if not ends or ends[-1] != lengths.num_samples:
        return []
    return [end for end in ends if end]
