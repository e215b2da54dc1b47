"""What of the lengths is in no pack, in sentences: tokens lost, records rejected, sources gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.errors import PackidxError
from packidx.format.index import Options
from packidx.format.terms import BY_CHOICE, LOST
from packidx.index.reader import Index
from packidx.inspect.verdict.finding import Finding, percent, samples
from packidx.lengths.rows import LengthsRows
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.options import dashed
from packidx.plan.resolved import ResolvedOptions, inherited
from packidx.plan.select.eligible import Rules
from packidx.plan.select.make_items import make_items


class Drops(NamedTuple):
    """The dropped table in short: rows by source and reason, and those that are too long."""

    number: Counter[tuple[str | None, str]]
    long_ids: Int64s
    long_sources: Counter[str | None]
    num_longer: int
    """Of the samples that are too long, those that have more tokens than a piece may have."""

    @classmethod
    def of(cls, index: Index) -> Drops:
        number: Counter[tuple[str | None, str]] = Counter()
        ids, sources, longer = [np.empty(0, np.int64)], Counter[str | None](), 0
        options = index.snapshot.options
        for window in range(len(index.snapshot.result.windows)):
            rows = index.window("dropped", window, ["sample_id", "source", "reason", "length"])
            for row in _counted(rows):
                number[row["source"], row["reason"]] += row["length_count"]
            long = rows.filter(pc.equal(rows["reason"], "too_long"))
            ids.append(long["sample_id"].to_numpy())
            sources.update(long["source"].to_pylist())
            weight = long["length"].to_numpy() - int(options.shift)
            longer += int((weight > longest(index)).sum())
        return cls(number, np.concatenate(ids), sources, longer)

    def of_reasons(self, reasons: tuple[str, ...]) -> dict[str, int]:
        """Dropped samples for each of `reasons` that has any."""
        counted = Counter[str]()
        for (_, reason), number in self.number.items():
            counted[reason] += number
        return {reason: counted[reason] for reason in reasons if counted[reason]}


def _counted(rows: Any) -> list[dict[str, Any]]:
    sums = [("length", "count", pc.CountOptions("all"))]
    grouped: list[dict[str, Any]] = rows.group_by(["source", "reason"]).aggregate(sums).to_pylist()
    return grouped


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
    if len(drops.long_ids):
        whys.append(_why_long(index, drops))
    for reason, number in drops.of_reasons(LOST[1:]).items():
        cap = f"`--{dashed(reason)} {getattr(options, reason)}`"
        whys.append(f"{samples(number)} alone {_are(number)} above {cap}")
    if result.num_tokens_cut:
        whys.append(
            f"{result.num_tokens_cut:,} tokens of packed samples are in none of their pieces"
        )
    said = f"{percent(result.lost_percent)} of the tokens to be packed are in no pack"
    yield Finding(result.lost_percent, f"{said}: {'; '.join(whys)}" if whys else said)


def _why_long(index: Index, drops: Drops) -> str:
    """How many samples are too long, of which kind, and what splitting them would keep."""
    options, number = index.snapshot.options, len(drops.long_ids)
    if options.on_long in ("split", "truncate"):
        others, said = number, ""
    else:
        others, said = number - drops.num_longer, _longer(index, drops.num_longer)
    if others:
        said += " and " * bool(said) + f"{samples(others)} {_are(others)} too long in another way"
        said += ", as column `detail` of the dropped table says"
    held = too_long(index, drops.long_ids)
    if held is not None:
        kinds = [f"{n:,} {_of_kind(kind)}" for kind, n in held.with_media.items()]
        said += f" ({', '.join(kinds)})" if len(kinds) > 1 else f" ({_of_kind(*held.with_media)})"
    elif len(drops.long_sources) > 1:
        by_source = drops.long_sources.most_common(4)
        names = [f"{n:,} of {name or 'no source'}" for name, n in by_source]
        said += f" ({', '.join(names)}{', …' if len(drops.long_sources) > 4 else ''})"
    if options.on_long != "drop" or held is None or held.kept_tokens is None:
        return said
    total = index.snapshot.result.num_tokens_eligible
    kept = f"{percent(100 * held.kept_tokens / total)} of the tokens"
    if held.kept_tokens == index.snapshot.result.num_tokens_lost:
        kept = "all of them"
    if not held.kept_tokens:
        return f"{said}; splitting them would keep nothing: raise --capacity"
    return f"{said}; `--on-long split` would keep {kept}"


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


def _of_kind(kind: str) -> str:
    return "of text alone" if kind == "text" else f"with {kind}"


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


_MEDIA = {"videos": "num_videos", "images": "num_images", "audio": "audio_tokens"}


@dataclass(frozen=True, slots=True)
class TooLong:
    """What the lengths table says of the samples that were dropped as too long.

    Attributes:
        with_media: how many hold videos, images or audio, each counted by the first of these that
            it holds; ``"text"`` counts those that hold none.
        kept_tokens: of their tokens, those that ``--on-long split`` would put into packs, by the
            planner's own rule; None where that depends on more than these samples.
    """

    with_media: dict[str, int]
    kept_tokens: int | None


def too_long(index: Index, sample_ids: Int64s) -> TooLong | None:
    """Look up the dropped samples `sample_ids`, int64 in order of windows, in the lengths table.

    Returns:
        None where the table is not there any more, has changed, or has no manifest that tells.
    """
    planned = index.snapshot.lengths
    try:
        table = read_lengths(index.resolve(planned.uri))
        if table.manifest is None or table.fingerprint() != planned.fingerprint:
            return None
        return _look_up(index, table, np.sort(sample_ids))
    except (PackidxError, OSError):
        return None  # what cannot be looked up is not told


def _look_up(index: Index, table: Lengths, sample_ids: Int64s) -> TooLong | None:
    options = split_options(index.snapshot.options)
    kinds = dict.fromkeys((*_MEDIA, "text"), 0)
    num_found, kept = 0, 0
    for window in index.snapshot.result.windows:
        rows = table.read(window.first_row, window.first_row + window.num_rows)
        rows = _only(rows, sample_ids)
        num_found += rows.num_rows
        _count_kinds(rows, kinds)
        if options is not None and rows.num_rows:
            kept += _kept(rows, options)
    if num_found != len(sample_ids):
        return None
    held = {name: number for name, number in kinds.items() if number}
    return TooLong(held, None if options is None else kept)


def split_options(options: Options) -> ResolvedOptions | None:
    """`options` with ``on_long`` split; None where what is kept depends on more than the samples.

    What training has had, and what a draw of packs leaves out, is not looked at here.
    """
    if options.continues or options.max_packs is not None:
        return None
    known = {each.name for each in fields(ResolvedOptions)}
    values = {name: value for name, value in inherited(options).items() if name in known}
    values |= {"on_long": "split", "mix": (), "cost": None, "holdout": None}
    values["margin"] = options.margin
    return ResolvedOptions(**values, planned_capacity=options.planned_capacity)


def _only(rows: LengthsRows, sample_ids: Int64s) -> LengthsRows:
    """Those of `rows` that have one of `sample_ids`, which are in order."""
    mine = np.isin(rows.sample_id, sample_ids)
    frame = rows.frame
    if "sample_id" not in frame.columns:
        frame = frame.with_columns(sample_id=pl.Series(rows.sample_id))
    return LengthsRows(rows.uri, rows.start, frame.filter(pl.Series(mine)), rows.places)


def _count_kinds(rows: LengthsRows, kinds: dict[str, int]) -> None:
    left = np.ones(rows.num_rows, bool)
    for name, column in _MEDIA.items():
        values, _ = rows.ints(column)
        kinds[name] += int((left & (values > 0)).sum())
        left &= values == 0
    kinds["text"] += int(left.sum())


def _kept(rows: LengthsRows, options: ResolvedOptions) -> int:
    """Tokens of `rows` that are in a pack once long samples are split, each counted once."""
    items, _ = make_items(rows, options, Rules())
    return items.num_eligible - int(items.lost[1].sum())
