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

from packidx.format.schema import MEDIA_COUNTERS
from packidx.format.terms import BY_CHOICE, LOST, WITH_MEDIA
from packidx.index.described import describe_untrained, too_large_step, untrained_sources
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.facts import format_counts
from packidx.inspect.sql import Row, rows_of, tables_of
from packidx.inspect.stats import plan_stats
from packidx.plan.options import to_flag
from packidx.words import number_of


class Finding(NamedTuple):
    """A sentence, and about how many percent of data or time what it says costs."""

    weight: float
    sentence: str


def format_percent(share: float) -> str:
    """Percents with a digit, and never a share that is not 0 or 100 as if it were."""
    text = f"{share:.1f}"
    if text == "100.0" and share < 100:
        return "over 99.9 %"
    if text == "0.0" and share > 0:
        return "below 0.1 %"
    return f"{text} %" if share not in (0, 100) else f"{share:.0f} %"


_FULL = 0.98  # packs that are less full are explained
_USEFUL = "useful_by_phase"  # ranks wait in the vision tower, and again in the language model
_LIKE_LENGTHS = 0.2  # correlation of lengths within packs: random packs have about 0


def plan_verdict(index: Index, stats: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Plain sentences about a plan, the most important first.

    Args:
        index: an opened snapshot.
        stats: what `packidx.inspect.stats.plan_stats` says of it; it is computed where this is
            None.

    Returns:
        sentences without a capital or a full stop, at least one.
    """
    if stats is None:
        stats = plan_stats(index)
    dropped = _read_dropped(index)
    findings = [
        *_find_lost_tokens(index, dropped),
        *_find_rejected(index),
        *_find_empty_sources(index, dropped),
        *_find_unlabelled(index),
        *_find_inexact(index),
        *_taken_for_text(index),
        *_find_equal_packs(index, stats["length_correlation"]),
        *_find_waiting(index, stats["schedule"]),
        *_find_gap(index),
        *_find_free_room(index),
    ]
    if said := without_media(index):
        findings.append(Finding(0.5, said))
    ordered = sorted(findings, key=lambda finding: -finding.weight)  # equals as they stand here
    return tuple(finding.sentence for finding in ordered)


def _find_unlabelled(index: Index) -> Iterator[Finding]:
    """Sources and packs without a label token."""
    result = index.snapshot.result
    packed = [*untrained_sources(index.snapshot).values()]
    shares = [100 * number / max(result.num_samples, 1) for number in packed]
    shares.append(100 * result.num_packs_without_labels / max(result.num_packs, 1))
    for share, sentence in zip(shares, describe_untrained(index.snapshot), strict=False):
        yield Finding(max(share, 2), sentence)


_MEANT = {
    "heuristic": "guesses from characters and pixels",
    "precomputed": "taken over from the data, and not counted again",
}


def _find_inexact(index: Index) -> Iterator[Finding]:
    """Lengths that are not exact, and what the plan does about it."""
    lengths, options = index.snapshot.lengths, index.snapshot.options
    total = sum(lengths.methods.values())
    if not total:
        said = "nothing says how the lengths were counted: they are taken as given"
        yield Finding(0.5, said)
        return
    kept = "no margin is kept for what they miss: a pack may come out above its capacity"
    if options.margin:
        kept = (
            f"{format_percent(100 * options.margin)} of each pack is kept free for what they miss"
        )
    for method, meant in _MEANT.items():
        if not (number := lengths.methods.get(method, 0)):
            continue
        said = (
            f"{format_percent(100 * number / total)} of the lengths are {method}: {meant}; {kept}"
        )
        said += "; `packidx estimate --processor` counts them exactly"
        # Guesses missed 9 to 27 % of samples where they were compared: more than a lost percent.
        yield Finding((30 if method == "heuristic" else 5) * number / total, said)


def _taken_for_text(index: Index) -> Iterator[Finding]:
    """Samples that are cut though nothing says that they have no media."""
    result, options = index.snapshot.result, index.snapshot.options
    is_cut = result.num_tokens_cut or result.num_pieces > result.num_samples
    if options.on_long not in ("split", "truncate") or not is_cut:
        return
    counters = index.packs([name for names in MEDIA_COUNTERS for name in names])
    if all(column.null_count == counters.num_rows for column in counters.columns):
        said = "the lengths have no column that says whether samples have media: those that are "
        yield Finding(2, f"{said}longer than a pack are cut as text")


def _find_equal_packs(index: Index, correlation: float | None) -> Iterator[Finding]:
    """Packs that are made of equals."""
    if correlation is not None and correlation > _LIKE_LENGTHS:
        said = "packs are not mixed: each holds samples of similar lengths"
        said += f" (correlation {correlation:.2f}, where random packs have 0)"
        rules = index.snapshot.result.strategies
        if "balanced" not in rules:
            said += f"; made by {', '.join(rules)}; planning with `--strategy balanced` mixes them"
        yield Finding(2 * correlation, said)  # it loses no token


def _find_gap(index: Index) -> Iterator[Finding]:
    """Packs above the proven lower bound."""
    result, options = index.snapshot.result, index.snapshot.options
    if result.gap <= 0 or result.gap_percent < 0.1:
        return
    what = "1 pack is" if result.gap == 1 else f"{result.gap:,} packs are"
    said = f"{what} above the proven lower bound of {result.lower_bound:,}, "
    said += format_percent(result.gap_percent)
    if options.strategy not in ("lp", "auto"):
        said += "; planning with `--strategy auto` may need fewer"
    yield Finding(result.gap_percent, said)


def _find_free_room(index: Index) -> Iterator[Finding]:
    """Yield how full packs are, and where the room that is left goes."""
    result, options = index.snapshot.result, index.snapshot.options
    said = f"packs are {format_percent(100 * result.fill)} full"
    if result.fill >= _FULL:
        yield Finding(1.0, said)
        return
    whys = []
    if free := 100 * (1 - options.planned_capacity / options.capacity):
        kept = [name for name in ("margin", "reserve") if getattr(options, name)]
        whys.append(f"{format_percent(free)} is kept free ({' and '.join(kept) or 'padding'})")
    for name, cap in options.caps.items():
        if at_cap := pc.sum(pc.equal(index.packs([name])[name], cap)).as_py():
            share = format_percent(100 * at_cap / result.num_packs)
            option = f"`--max-{to_flag(name.removeprefix('num_'))}`"
            whys.append(f"{share} of the packs have all {cap:,} that {option} allows")
    if options.align > 1:
        whys.append(f"each sample is padded to a multiple of {options.align:,} tokens")
    yield Finding(100 * (1 - result.fill), ": ".join(filter(None, [said, "; ".join(whys)])))


def without_media(index: Index) -> str | None:
    """Return how many packs leave the vision tower idle, of a plan where others do not."""
    packs = index.packs(["num_images", "video_tokens"])
    media = pc.add(packs["num_images"], pc.coalesce(packs["video_tokens"], 0))
    number = int(pc.sum(pc.equal(media, 0)).as_py() or 0)
    is_aligned = index.snapshot.options.align_media
    if not number or is_aligned or not pc.any(pc.greater(media, 0)).as_py():
        return None
    have = "has" if number == 1 else "have"
    said = f"{number:,} of {number_of(packs.num_rows, 'pack')} {have} no image and no video"
    how = "" if index.snapshot.options.reserve else ", planned with `--reserve`"
    cure = f"unless packs are planned with `--align-media` or read with `dummy_image=True`{how}"
    return f"{said}: DDP and FSDP hang when a rank skips the vision tower, {cure}"


def _find_waiting(index: Index, schedule: list[dict[str, Any]]) -> Iterator[Finding]:
    """Time that ranks lose waiting for the slowest, where the schedule has power and where not."""
    result, size = index.snapshot.result, packs_per_step(index.snapshot)
    if said := too_large_step(index.snapshot):
        yield Finding(100, said)
    rows = [each for each in schedule if each["planned"] and each["planned"][_USEFUL] is not None]
    rows = [each for each in rows if size is None or each["ranks"] <= size]
    if not rows:
        return
    shown = rows[0 if result.schedule == "random" else -1]
    lost = 100 * (1 - shown["planned"][_USEFUL])
    ranks = f"{number_of(shown['ranks'], 'rank')} × {number_of(shown['micro_steps'], 'micro-step')}"
    share = format_percent(lost)
    said = f"at {ranks} {share} of the time is lost to waiting, by the plan's cost model"
    if result.schedule == "random":
        said += ": the packs are in random order, so costs are not evened out"
    yield Finding(lost / 2, said)


def _read_dropped(index: Index) -> list[Row]:
    """Return how many samples are dropped, by ``source`` and ``reason``, how many of these are
    ``longer`` than a pack, of these how many have ``media`` or may, and the ``key`` of the longest.
    """
    with tables_of({"dropped": (index, "dropped")}) as connection:
        return rows_of(
            connection,
            f"""SELECT source, reason, count(*) AS number,
            count(*) FILTER (is_longer) AS longer,
            count(*) FILTER (is_longer AND ends_with(detail, '{WITH_MEDIA}')) AS media,
            max(length) AS length, arg_max(key, length) AS key
            FROM (SELECT *, length > {index.snapshot.options.longest} AS is_longer FROM dropped)
            GROUP BY source, reason ORDER BY source, reason""",
        )


def _find_lost_tokens(index: Index, dropped: list[Row]) -> Iterator[Finding]:
    """Tokens that were to be packed and are in no pack, and what would keep them."""
    result, options = index.snapshot.result, index.snapshot.options
    if not result.num_tokens_lost:
        return
    whys = []
    if long := [row for row in dropped if row["reason"] == "too_long"]:
        whys.append(_why_long(index, long))
    if number := result.dropped.get("no_labels"):
        said = "would be cut to tokens without a label"
        whys.append(f"{number_of(number, 'long sample')} {said}")
    for reason in LOST[2:]:
        if number := result.dropped.get(reason):
            cap = f"`--{to_flag(reason)} {getattr(options, reason)}`"
            whys.append(f"{number_of(number, 'sample')} alone {_is_or_are(number)} above {cap}")
    if cut := result.num_tokens_cut:
        why = f"{cut:,} tokens of packed samples are cut off"
        if options.on_long == "split":
            why = f"{cut:,} tokens are of pieces of packed samples that have no label token"
        whys.append(why)
    said = f"{format_percent(result.lost_percent)} of the tokens to be packed are in no pack"
    yield Finding(result.lost_percent, f"{said}: {'; '.join(whys)}" if whys else said)


def _why_long(index: Index, dropped: list[Row]) -> str:
    """Return how many samples are too long, of which sources, and what keeps them."""
    longer, media = (sum(row[name] for row in dropped) for name in ("longer", "media"))
    whys = []
    if longer:
        what, most = "a pack", index.snapshot.options.longest
        if most != index.capacity:
            what = f"the {most:,} tokens that are planned for in a pack of {index.capacity:,}"
        whys.append(f"{number_of(longer, 'sample')} {_is_or_are(longer)} longer than {what}")
    if others := sum(row["number"] for row in dropped) - longer:
        said = f"{number_of(others, 'sample')} {_is_or_are(others)} too long in another way"
        whys.append(f"{said}, as column `detail` of the dropped table says")
    said = " and ".join(whys)
    if len(dropped) > 1:
        most_first = sorted(dropped, key=lambda row: -row["number"])[:4]
        names = [f"{row['number']:,} of {row['source'] or 'no source'}" for row in most_first]
        said += f" ({', '.join(names)}{', …' if len(dropped) > 4 else ''})"
    worst = max(dropped, key=lambda row: row["length"])
    if worst["key"]:
        said += f", the longest is {worst['key']} with {worst['length']:,} tokens"
    if media:
        said += f"; {media:,} {'has' if media == 1 else 'have'} media or may have some: a larger "
        said += "`--capacity` keeps them, and so do smaller media "
        said += "(`--processor-set images.max_pixels=N`, `videos.fps=N`)"
    if index.snapshot.options.on_long in ("split", "truncate") or longer <= media:
        return said
    them = "the others" if media else "them"
    return f"{said}; planning with `--on-long split` packs {them} in pieces"


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _find_rejected(index: Index) -> Iterator[Finding]:
    """Records that have no length."""
    num_in, dropped = index.snapshot.lengths.num_samples, index.snapshot.result.dropped
    if number := dropped.get("rejected", 0):
        share = 100 * number / num_in
        why = Counter[str]()
        for source in index.snapshot.sources:
            why.update(source.rejected or {})
        more = ", …" if len(why) > 4 else ""
        by_reason = f" ({format_counts(why.most_common(4))}{more})" if why.total() == number else ""
        said = f"{number:,} of {num_in:,} records {_is_or_are(number)} rejected"
        yield Finding(share, f"{said}, {format_percent(share)}{by_reason}")
    if number := sum(dropped.get(reason, 0) for reason in ("invalid_length", "empty")):
        share = 100 * number / num_in
        have = "has" if number == 1 else "have"
        said = f"{number_of(number, 'sample')} {have} no token to train on, {format_percent(share)}"
        yield Finding(share, said)


def _find_empty_sources(index: Index, dropped: list[Row]) -> Iterator[Finding]:
    """Sources of which nothing is packed, though no option asked for that."""
    for source in index.snapshot.sources:
        if not source.num_samples or source.num_dropped < source.num_samples:
            continue
        mine = {row["reason"]: row["number"] for row in dropped if row["source"] == source.name}
        if set(mine) <= set(BY_CHOICE):
            continue
        said = f"no sample of source {source.name} is in a pack: all its "
        said += (
            f"{number_of(source.num_samples, 'sample')} {_is_or_are(source.num_samples)} dropped"
        )
        share = 100 * source.num_samples / index.snapshot.lengths.num_samples
        yield Finding(max(share, 5), f"{said} ({format_counts(sorted(mine.items()))})")
