"""A plan judged in sentences, the most important first: what it loses, why, and what would help.

Every number is of the snapshot, or is computed by the rule that a plan computes it by. What costs
most comes first: each finding has a weight, about the percent of data or time that it costs, and
what costs less than one percent comes behind how full the packs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from packidx.index.described import untrained, untrained_sources
from packidx.index.reader import Index
from packidx.inspect.stats import sample_stats
from packidx.inspect.verdict.drops import Drops, gone, lost, rejected
from packidx.inspect.verdict.finding import Finding, percent
from packidx.inspect.verdict.waiting import waiting

_FULL = 0.98  # packs that are less full are explained
_LIKE_LENGTHS = 0.2  # correlation of lengths within packs: random packs have about 0
_UNMIXED = 0.1  # by how much more than by chance the packs' sources differ from the whole's


def verdict(index: Index, of_samples: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Plain sentences about a plan, the most important first.

    Args:
        index: an opened snapshot.
        of_samples: what `packidx.inspect.stats.sample_stats` says of it; it is computed where this
            is None.

    Returns:
        sentences without a capital or a full stop, at least one.
    """
    if of_samples is None:
        of_samples = sample_stats(index)
    drops = Drops.of(index)
    findings = [
        *lost(index, drops),
        *rejected(index, drops),
        *gone(index, drops),
        *_labels(index),
        *_lengths(index),
        *_mixing(index, of_samples["composition"]),
        *waiting(index, of_samples["schedule"]),
        *_gap(index),
        *_fill(index),
    ]
    ordered = sorted(findings, key=lambda finding: -finding.weight)  # equals as they stand here
    return tuple(finding.sentence for finding in ordered)


def _labels(index: Index) -> Iterator[Finding]:
    """Sources and packs without a label token."""
    result = index.snapshot.result
    packed = [*untrained_sources(index.snapshot).values()]
    shares = [100 * number / max(result.num_samples, 1) for number in packed]
    shares.append(100 * result.num_packs_without_labels / max(result.num_packs, 1))
    for share, sentence in zip(shares, untrained(index.snapshot), strict=False):
        yield Finding(max(share, 2), sentence)


_MEANT = {
    "heuristic": "guesses from characters and pixels",
    "precomputed": "taken over from the data, and not counted again",
}


def _lengths(index: Index) -> Iterator[Finding]:
    """Lengths that are not exact, and what the plan does about it."""
    lengths, options = index.snapshot.lengths, index.snapshot.options
    total = sum(lengths.methods.values())
    if not total:
        said = "the lengths are taken as they are given: nothing says how they were counted"
        yield Finding(0.5, said)
        return
    for method, meant in _MEANT.items():
        number = lengths.methods.get(method, 0)
        if not number:
            continue
        share = 100 * number / total
        said = f"{percent(share)} of the lengths are {method}: {meant}"
        if not options.margin:
            said += "; no margin is kept for what they miss: a pack may come out above its capacity"
        else:
            said += (
                f"; {percent(100 * options.margin)} of each pack is kept free for what they miss"
            )
        said += "; `packidx estimate --processor` counts them exactly"
        # Guesses missed 9 to 27 % of samples where they were compared: more than a lost percent.
        yield Finding((30 if method == "heuristic" else 5) * number / total, said)


def _mixing(index: Index, composition: Mapping[str, Any]) -> Iterator[Finding]:
    """Packs that are made of equals."""
    options = index.snapshot.options
    correlation = composition["length_correlation"]
    if correlation is not None and correlation > _LIKE_LENGTHS:
        said = (
            f"packs are not mixed: each holds samples of like lengths (correlation "
            f"{correlation:.2f}, where random packs have 0)"
        )
        made_by = index.snapshot.result.strategies
        if "balanced" not in made_by:
            said += f"; made by {', '.join(made_by)}, where `--strategy balanced` mixes lengths"
        yield Finding(10 * correlation, said)
    distance = composition["source_distance"]
    if distance is None or distance["mean"] is None or distance["random"] is None:
        return
    if distance["mean"] - distance["random"] > _UNMIXED:
        mean, random = 100 * distance["mean"], 100 * distance["random"]
        said = (
            f"packs hold few sources each: they differ from the whole mix by {mean:.0f} % of their "
            f"tokens, where random packs differ by {random:.0f} %"
        )
        if options.group_by is not None:
            said += f", as `--group-by {options.group_by}` asks"
        elif len(index.snapshot.result.windows) > 1:
            said += f", as packs are made in {len(index.snapshot.result.windows):,} windows"
        yield Finding((mean - random) / 4, said)


def _gap(index: Index) -> Iterator[Finding]:
    """Packs above the proven lower bound."""
    result, options = index.snapshot.result, index.snapshot.options
    if result.gap <= 0 or result.gap_percent < 0.1:
        return
    what = "1 pack is" if result.gap == 1 else f"{result.gap:,} packs are"
    said = f"{what} above the proven lower bound of {result.lower_bound:,}, "
    said += percent(result.gap_percent)
    if options.strategy not in ("lp", "auto"):
        said += "; `--strategy auto` tries for fewer"
    yield Finding(result.gap_percent, said)


def _fill(index: Index) -> Iterator[Finding]:
    """How full packs are, and where the room that is left goes."""
    result, options = index.snapshot.result, index.snapshot.options
    said = f"packs are {percent(100 * result.fill)} full"
    empty = 100 * (1 - result.fill)
    if result.fill < _FULL:
        whys = []
        free = 100 * (1 - options.planned_capacity / options.capacity)
        if free:
            kept = [name for name in ("margin", "reserve") if getattr(options, name)]
            whys.append(f"{percent(free)} is kept free ({' and '.join(kept) or 'padding'})")
        for name, (at_cap, cap) in _at_caps(index).items():
            share = percent(100 * at_cap / result.num_packs)
            whys.append(f"{share} of the packs have all {cap:,} that `--{name}` allows")
        if options.align > 1:
            whys.append(f"each sample is padded to a multiple of {options.align:,} tokens")
        if whys:
            said += f": {'; '.join(whys)}"
    yield Finding(max(1.0, empty if result.fill < _FULL else 1.0), said)


def _at_caps(index: Index) -> dict[str, tuple[int, int]]:
    """Of each cap on packs: how many packs have reached it, and what it is."""
    options = index.snapshot.options
    columns = {"num_images": "max-images", "vision_patches": "max-vision-patches"}
    columns["num_samples"] = "max-samples"
    asked = {name: getattr(options, cap.replace("-", "_")) for name, cap in columns.items()}
    asked = {name: cap for name, cap in asked.items() if cap is not None}
    if not asked:
        return {}
    packs = index.packs(list(asked))
    reached = {
        columns[name]: (int(pc.sum(pc.equal(packs[name], cap)).as_py() or 0), cap)
        for name, cap in asked.items()
    }
    return {name: at_cap for name, at_cap in reached.items() if at_cap[0]}
