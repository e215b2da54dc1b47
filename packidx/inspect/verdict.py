"""A plan judged in sentences, the most important first: what it loses, why, and what would help.

Every number is of the snapshot, or is computed by the rule that a plan computes it by. What costs
most comes first: each finding has a weight, about the percent of data or time that it costs, and
what costs less than one percent comes behind how full the packs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow.compute as pc

from packidx.format.terms import BY_CHOICE, LOST
from packidx.index.described import untrained, untrained_sources
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.sql import tables_of
from packidx.inspect.stats import sample_stats
from packidx.plan.options import dashed


class Finding(NamedTuple):
    """A sentence, and about how many percent of data or time what it says costs."""

    weight: float
    sentence: str


def percent(share: float) -> str:
    """Percents with a digit, and never a share that is not 0 or 100 as if it were."""
    text = f"{share:.1f}"
    if text == "100.0" and share < 100:
        return "over 99.9 %"
    if text == "0.0" and share > 0:
        return "below 0.1 %"
    return f"{text} %" if share not in (0, 100) else f"{share:.0f} %"


def samples(number: int) -> str:
    return f"{number:,} sample{'' if number == 1 else 's'}"


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
    """Yield how full packs are, and where the room that is left goes."""
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
    """Return how many packs have reached each cap, and what the cap is."""
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


def waiting(index: Index, schedule: list[dict[str, Any]]) -> Iterator[Finding]:
    """Time that ranks lose waiting for the slowest, where the schedule has power and where not."""
    result, size = index.snapshot.result, packs_per_step(index.snapshot)
    packs = result.num_packs // index.snapshot.options.epochs
    if size is not None and packs < size:
        said = f"an epoch has {packs:,} packs, fewer than the {size:,} of one step"
        yield Finding(100, f"{said}: plan more data, or smaller steps")
    told = [of_ranks for of_ranks in schedule if _useful(of_ranks) is not None]
    with_power = [each for each in told if not is_powerless(index, each)]
    without = [each for each in told if is_powerless(index, each)]
    if with_power:
        planned_for = [each for each in with_power if each["ranks"] <= result.schedule_chunk]
        best = planned_for[-1] if planned_for else with_power[0]
        lost = 100 * (1 - best["planned"]["useful"])
        yield Finding(lost / 2, f"{_at(best)} {_lost_waiting(lost)}")
    if without:
        yield _without_power(index, without[0])


def _useful(of_ranks: Mapping[str, Any]) -> float | None:
    planned = of_ranks["planned"]
    return None if planned is None else planned["useful"]


def is_powerless(index: Index, of_ranks: Mapping[str, Any]) -> bool:
    """Return whether the schedule can do nothing for a number of ranks, or does harm.

    Args:
        of_ranks: an entry of ``schedule`` (`packidx.inspect.stats.sample_stats`) with useful time.
    """
    result = index.snapshot.result
    if result.schedule == "random":
        return True
    # Its micro-steps, planned apart, are all of one micro-step of these ranks.
    joined = of_ranks["micro_steps"] == 1 and result.schedule_chunk < result.schedule_block
    return joined or of_ranks["planned"]["useful"] < of_ranks["random"]["useful"]


def _without_power(index: Index, of_ranks: Mapping[str, Any]) -> Finding:
    result = index.snapshot.result
    lost = 100 * (1 - of_ranks["planned"]["useful"])
    said = f"{_at(of_ranks)} {_lost_waiting(lost)}"
    if result.schedule == "random":
        return Finding(lost / 2, f"{said}: the packs are in random order, no cost is evened out")
    if of_ranks["micro_steps"] == 1:
        said += ": one micro-step per step leaves the schedule nothing to even out; "
        said += "`--micro-steps` of a larger `--global-batch` gives it some"
    else:
        random = 100 * (1 - of_ranks["random"]["useful"])
        said += f": the schedule does harm there, a random order loses {percent(random)}"
    return Finding(lost / 4, said)  # only if so many ranks are used


def _lost_waiting(lost: float) -> str:
    return f"{percent(lost)} of the time is lost waiting, by the plan's cost model"


def _at(of_ranks: Mapping[str, Any]) -> str:
    ranks, steps = of_ranks["ranks"], of_ranks["micro_steps"]
    return (
        f"at {ranks:,} rank{'' if ranks == 1 else 's'} × {steps:,} micro-step"
        f"{'' if steps == 1 else 's'}"
    )


class Drops(NamedTuple):
    """The dropped table in short."""

    number: dict[tuple[str | None, str], int]
    """Rows by source and reason."""
    num_longer: int
    """Of the samples that are too long, those that have more tokens than a piece may have."""

    @classmethod
    def of(cls, index: Index) -> Drops:
        longest_row = longest(index) + int(index.snapshot.options.shift)
        with tables_of({"dropped": (index, "dropped")}) as connection:
            listed = connection.execute(
                f"SELECT source, reason, count(*), count(*) FILTER (length > {longest_row}) "
                "FROM dropped GROUP BY ALL ORDER BY ALL"
            ).fetchall()
        longer = sum(number for _, reason, _, number in listed if reason == "too_long")
        return cls({(source, reason): number for source, reason, number, _ in listed}, longer)

    def of_reasons(self, reasons: tuple[str, ...]) -> dict[str, int]:
        """Dropped samples for each of `reasons` that has any."""
        counted = Counter[str]()
        for (_, reason), number in self.number.items():
            counted[reason] += number
        return {reason: counted[reason] for reason in reasons if counted[reason]}


def longest(index: Index) -> int:
    """Tokens that one piece may have in a plan."""
    options = index.snapshot.options
    return options.planned_capacity // options.align * options.align


def lost(index: Index, drops: Drops) -> Iterator[Finding]:
    """Tokens that were to be packed and are in no pack, and what would keep them."""
    result, options = index.snapshot.result, index.snapshot.options
    if not result.num_tokens_lost:
        return
    whys = []
    if number := drops.of_reasons(("too_long",)).get("too_long"):
        whys.append(_why_long(index, drops, number))
    for reason, number in drops.of_reasons(LOST[1:]).items():
        cap = f"`--{dashed(reason)} {getattr(options, reason)}`"
        whys.append(f"{samples(number)} alone {_are(number)} above {cap}")
    if result.num_tokens_cut:
        whys.append(
            f"{result.num_tokens_cut:,} tokens of packed samples are in none of their pieces"
        )
    said = f"{percent(result.lost_percent)} of the tokens to be packed are in no pack"
    yield Finding(result.lost_percent, f"{said}: {'; '.join(whys)}" if whys else said)


def _why_long(index: Index, drops: Drops, number: int) -> str:
    """Return how many samples are too long, of which sources, and what keeps them."""
    splits = index.snapshot.options.on_long in ("split", "truncate")
    longer = 0 if splits else drops.num_longer
    said = _longer(index, longer)
    if others := number - longer:
        said += " and " * bool(said) + f"{samples(others)} {_are(others)} too long in another way"
        said += ", as column `detail` of the dropped table says"
    sources = Counter(
        {name: n for (name, reason), n in drops.number.items() if reason == "too_long"}
    )
    if len(sources) > 1:
        names = [f"{n:,} of {name or 'no source'}" for name, n in sources.most_common(4)]
        said += f" ({', '.join(names)}{', …' if len(sources) > 4 else ''})"
    return said if splits else f"{said}; `--on-long split` packs them in pieces"


def _longer(index: Index, number: int) -> str:
    if not number:
        return ""
    said = f"{samples(number)} {_are(number)} longer than "
    if longest(index) == index.capacity:
        return f"{said}a pack"
    said += f"the {longest(index):,} tokens that are planned for in a pack of {index.capacity:,}"
    return said


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def rejected(index: Index, drops: Drops) -> Iterator[Finding]:
    """Records that have no length."""
    num_in = index.snapshot.lengths.num_samples
    if number := drops.of_reasons(("rejected",)).get("rejected", 0):
        share = 100 * number / num_in
        why = Counter[str]()
        for source in index.snapshot.sources:
            why.update(source.rejected or {})
        listed = ", ".join(f"{n:,} {reason}" for reason, n in why.most_common(4))
        more = ", …" if len(why) > 4 else ""
        by_reason = f" ({listed}{more})" if why.total() == number else ""
        said = f"{number:,} of {num_in:,} records {_are(number)} rejected, {percent(share)}"
        yield Finding(share, said + by_reason)
    others = drops.of_reasons(("invalid_length", "empty"))
    if number := sum(others.values()):
        share = 100 * number / num_in
        have = "has" if number == 1 else "have"
        yield Finding(share, f"{samples(number)} {have} no token to train on, {percent(share)}")


def gone(index: Index, drops: Drops) -> Iterator[Finding]:
    """Sources of which nothing is packed, though nobody asked for that."""
    for source in index.snapshot.sources:
        if not source.num_samples or source.num_dropped < source.num_samples:
            continue
        mine = {reason: n for (name, reason), n in drops.number.items() if name == source.name}
        if set(mine) <= set(BY_CHOICE):
            continue
        whys = ", ".join(f"{n:,} {reason}" for reason, n in sorted(mine.items()))
        said = f"source {source.name} is in no pack: all its {samples(source.num_samples)} "
        said += f"{_are(source.num_samples)} dropped ({whys})"
        share = 100 * source.num_samples / index.snapshot.lengths.num_samples
        yield Finding(max(share, 5), said)
