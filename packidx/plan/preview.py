"""What plans of several capacities would be, from the histogram of the lengths alone.

The tool that picks a capacity. Packs are counted by best-fit-decreasing on counts, so a row is
the plan that ``--strategy bfd`` makes and an upper bound for ``auto``; no sample is looked at by
itself, and a hundred million take as long as their lengths take to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import OptionError, SourceError
from packidx.format.index import Options
from packidx.lengths.survey import Survey, survey
from packidx.lengths.table import read_lengths
from packidx.pack.bounds import lower_bound
from packidx.pack.counts import Histogram
from packidx.pack.strategies.decreasing import best_fit_decreasing
from packidx.plan.options import DEFAULTS, OPTIONS, PlanOptions, dashed
from packidx.plan.resolved import with_defaults


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """The plan at one capacity.

    Attributes:
        capacity: tokens a pack may hold.
        planned_capacity: those that are planned, after margin and padding of packs.
        num_samples: samples that are packed, whole or cut.
        num_tokens: their tokens that are packed.
        num_packs: by best-fit-decreasing.
        fill: num_tokens / (num_packs * capacity).
        lower_bound: packs that every plan needs; `bound` names the bound.
        gap: num_packs - lower_bound; `gap_percent` of the lower bound.
        num_unusable: rows that are rejected or have no length, the same at every capacity.
        num_dropped: samples that are too long, and their `dropped_tokens`.
        num_refused: those of them for which ``--on-long error`` would stop the plan.
        num_cut: samples that are split or truncated, and the `tokens_cut` off them.
        num_cut_with_media: how many of them hold media: a plan moves cuts that would fall inside a
            medium, and leaves out media longer than a pack, which lengths alone do not show.
        steps: whole optimizer steps per epoch; None without a global batch.
    """

    capacity: int
    planned_capacity: int
    num_samples: int
    num_tokens: int
    num_packs: int
    fill: float
    lower_bound: int
    bound: str
    gap: int
    gap_percent: float
    num_unusable: int
    num_dropped: int
    dropped_tokens: int
    num_refused: int
    num_cut: int
    tokens_cut: int
    num_cut_with_media: int
    steps: int | None


def preview(
    lengths: str, capacities: Sequence[int], options: PlanOptions | None = None
) -> list[PreviewRow]:
    """One row per capacity, in the order given.

    Args:
        lengths: a lengths table, or any Parquet file, folder or glob with a `length` column.
        capacities: tokens a pack may hold.
        options: the other options of the plan; their capacity is not looked at. Those that `unseen`
            names do not enter.

    Raises:
        OptionError: a capacity or an option has no meaning.
        SourceError, FormatError, MismatchError: `lengths` is not usable.
    """
    if not capacities:
        raise OptionError("capacity is missing: name one or more, such as 4096,8192")
    options = options or PlanOptions(capacities[0])
    asked = [replace(options, capacity=capacity) for capacity in capacities]
    table = read_lengths(lengths)
    if "pair" in table.columns:
        raise OptionError(
            f"{lengths} has preference pairs, which a dry run does not know to keep together: plan "
            "one capacity, and see what `packidx stats` says of it"
        )
    counted = survey(table)
    if not counted.usable(options.shift).height:
        raise SourceError(
            f"{lengths} holds no usable sample ({counted.num_samples} rows): nothing to pack"
        )
    return [_row(counted, with_defaults(options, counted.weakest_method)) for options in asked]


def unseen(options: PlanOptions) -> list[str]:
    """The options, as the command line has them, that change the plan and not its preview."""
    return [
        "--" + dashed(name)
        for name, said in OPTIONS.items()
        if not said.is_previewed and getattr(options, name) != DEFAULTS[name]
    ]


def _row(counted: Survey, options: Options) -> PreviewRow:
    usable = counted.usable(options.shift)
    lengths = usable["length"].to_numpy() - int(options.shift)
    counts = usable["count"].to_numpy()
    long = lengths > options.longest
    kept, kept_counts = _pieces(lengths, counts, options)
    packed = _merged(options.padded(kept), kept_counts)
    num_tokens = int(kept @ kept_counts)
    num_packs = best_fit_decreasing(packed, options.planned_capacity).total_packs
    bound, name = lower_bound(packed, options.planned_capacity)
    cuts = options.on_long in ("split", "truncate")
    num_long, long_tokens = int(counts[long].sum()), int(lengths[long] @ counts[long])
    num_samples = int(counts.sum()) - (0 if cuts else num_long)
    return PreviewRow(
        capacity=options.capacity,
        planned_capacity=options.planned_capacity,
        num_samples=num_samples,
        num_tokens=num_tokens,
        num_packs=num_packs,
        fill=_share(num_tokens, num_packs * options.capacity),
        lower_bound=bound,
        bound=name,
        gap=num_packs - bound,
        gap_percent=100 * _share(num_packs - bound, bound),
        num_unusable=counted.num_samples - int(counts.sum()),
        num_dropped=0 if cuts else num_long,
        dropped_tokens=0 if cuts else long_tokens,
        num_refused=num_long if options.on_long == "error" else 0,
        num_cut=num_long if cuts else 0,
        tokens_cut=int(lengths @ counts) - num_tokens if cuts else 0,
        num_cut_with_media=int(usable["num_with_media"].to_numpy()[long].sum()) if cuts else 0,
        steps=options.global_batch and num_packs // options.global_batch,
    )


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0


def _pieces(lengths: Int64s, counts: Int64s, options: Options) -> tuple[Int64s, Int64s]:
    """The lengths that are packed and how many of each: what fits, and pieces of what does not."""
    longest = options.longest
    long = lengths > longest
    fitting, pieces = lengths[~long], lengths[long]
    if options.on_long == "truncate":
        firsts = np.full(len(pieces), longest)
        return np.concatenate([fitting, firsts]), np.concatenate([counts[~long], counts[long]])
    if options.on_long != "split":
        return fitting, counts[~long]
    ends = pieces % longest
    return (
        np.concatenate([fitting, np.full(len(pieces), longest), ends[ends > 0]]),
        np.concatenate([counts[~long], counts[long] * (pieces // longest), counts[long][ends > 0]]),
    )


def _merged(lengths: Int64s, counts: Int64s) -> Histogram:
    values, number = np.unique(lengths, return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, number, counts)
    return Histogram(values[::-1].astype(np.int64), sums[::-1].copy())
