"""The five figures of a report: each a query over the views, a table, and bars of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.words import format_count, format_percent, number_of

MAX_SERIES = 8
"""Sources with a colour of their own; of more, the smaller ones are one."""
GOOD, BAD = 0, 3
"""Colours of page.html."""
_FILL_EDGES = (0, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
_MOST = 300
"""Samples of a pack that are drawn."""
_PER_OCTAVE = 2


class Box(NamedTuple):
    """A part of a bar, in percent of the chart's width, and the words for the pointer."""

    colour: int
    size: float
    title: str
    is_cut: bool = False


class Bar(NamedTuple):
    """Boxes end to end, with a name before them and a label behind."""

    name: str
    boxes: list[Box]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and the table of its numbers.

    Attributes:
        title: what it shows.
        says: how it is read, in a sentence or two.
        columns: of the table.
        rows: whole numbers, None for unknown ones, and words; few, however large the plan is.
        bars: of the chart, beneath each other.
        names: of the colours, in their order; the legend, where there are several.
        is_wide: take the page's whole width.
    """

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    bars: Sequence[Bar]
    names: Sequence[str] = ()
    is_wide: bool = False


def short_name(name: Any, most: int = 40) -> str:
    """A name that fits."""
    text = "(no name)" if name is None else str(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Series:
    """The largest sources by their own names, the rest under one."""

    def __init__(self, sizes: Sequence[tuple[Any, int]]) -> None:
        """`sizes`: names, None among them, and how large each is."""
        self.num_sources = len(sizes)
        ordered = [short_name(name) for name, _ in sorted(sizes, key=lambda pair: -pair[1])]
        names = list(dict.fromkeys(ordered))
        is_many = len(names) > MAX_SERIES
        self.names = [*names[: MAX_SERIES - 1], "all others"] if is_many else names

    def of(self, name: Any) -> int:
        """The colour of a source."""
        shown = short_name(name)
        return self.names.index(shown) if shown in self.names else len(self.names) - 1


def _draw_bars(
    bars: Sequence[tuple[str, Mapping[int, float], str]],
    what: str,
    names: Sequence[str] = (),
    shown: Callable[[float], str] = format_count,
) -> list[Bar]:
    """Bars by name, values by colour, and label; `shown` writes a value, which counts `what`."""
    end = max((sum(values.values()) for _, values, _ in bars), default=0) or 1
    return [
        Bar(
            short_name(name),
            [
                Box(
                    colour,
                    100 * value / end,
                    f"{name}{f', {names[colour]}' if names else ''}: {shown(value)} {what}",
                )
                for colour, value in values.items()
                if value or len(values) == 1
            ],
            label,
        )
        for name, values, label in bars
    ]


def draw_tokens(index: Index, connection: Any) -> Figure:
    """Return where the tokens go: into packs, or out of the plan, by reason; and room that is
    left."""
    result, capacity = index.snapshot.result, index.snapshot.options.capacity
    dropped = connection.execute(
        "SELECT reason, count(*), CAST(coalesce(sum(greatest(length, 0)), 0) AS BIGINT) "
        "FROM dropped GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1"
    ).fetchall()
    rows: list[tuple[str, int | None, int]] = [("in packs", result.num_samples, result.num_tokens)]
    rows += [(f"out: {why}", number, tokens) for why, number, tokens in dropped]
    if result.num_tokens_cut:
        rows.append(("cut off packed samples", None, result.num_tokens_cut))
    rows.append(("room left in packs", None, result.num_packs * capacity - result.num_tokens))
    good = {"in packs", "room left in packs", *(f"out: {why}" for why in BY_CHOICE)}
    bars = [(name, {GOOD if name in good else BAD: n}, format_count(n)) for name, _, n in rows]
    lost = "all are in packs"
    if result.num_tokens_lost:
        lost = f"{format_percent(result.lost_percent / 100, 1)} are in no pack (red)"
    return Figure(
        "Where the tokens go",
        f"Of the {format_count(result.num_tokens_eligible)} tokens that were to be packed, {lost}. "
        "Samples that were left out by choice do not count. Packs hold every copy of a sample.",
        ("", "samples", "tokens"),
        rows,
        _draw_bars(bars, "tokens"),
    )


def draw_fill(index: Index, connection: Any) -> Figure:
    """Packs by how full they are."""
    capacity, result = index.snapshot.options.capacity, index.snapshot.result
    shares = connection.execute(f"SELECT 100.0 * length / {capacity} AS fill FROM packs")
    numbers, _ = np.histogram(shares.fetchnumpy()["fill"], _FILL_EDGES)
    edges = zip(_FILL_EDGES, _FILL_EDGES[1:], strict=False)
    names = [f"{low:g}–{high:g} %" for low, high in edges]
    rows = list(zip(names, numbers.tolist(), strict=True))
    while len(rows) > 1 and not rows[0][1]:
        del rows[0]  # emptier than any pack
    return Figure(
        "How full packs are",
        f"{100 * result.fill:.3f} % on average. No plan under the same options has fewer than "
        f"{number_of(result.lower_bound, 'pack')} ({result.bound}); this one has "
        f"{format_count(result.num_packs)}, {result.gap_percent:.3f} % more.",
        ("fill", "packs"),
        rows,
        _draw_bars(
            [(name, {GOOD: number}, format_count(number)) for name, number in rows], "packs"
        ),
    )


def draw_waiting(schedule: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """The share of time in which no rank waits; None if no number of ranks has a step."""
    words = [f"this plan: {name}", "random order"]
    rows = [
        (f"{row['ranks']} × {row['micro_steps']}", number, row[key]["useful_by_phase"])
        for row in schedule
        for number, key in enumerate(("planned", "random"))
        if row[key] and row[key]["useful_by_phase"] is not None
    ]
    if not rows:
        return None
    bars = [(ranks, {number: useful}, format_percent(useful, 1)) for ranks, number, useful in rows]
    return Figure(
        "Step balance",
        "Time in which no rank waits, by ranks × micro-steps. All ranks of a micro-step wait for "
        "its slowest pack, in the vision tower and in the language model, by the plan's cost "
        "model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        [(ranks, words[number], format_percent(useful)) for ranks, number, useful in rows],
        _draw_bars(bars, "useful", words, lambda useful: format_percent(useful, 1)),
        words,
    )


def packs_closely(index: Index, connection: Any, series: Series) -> Figure:
    """The samples of a few packs, end to end: extremes, and three of the middle; each once."""
    wanted = {
        "most samples": "num_samples DESC",
        "most visual": "coalesce(image_tokens, 0) + coalesce(video_tokens, 0) DESC",
        "emptiest": "length",
    }
    chosen: dict[int, str] = {}
    for why, order in wanted.items():
        query = f"SELECT pack_id FROM packs ORDER BY {order}, pack_id LIMIT 1"
        for (pack_id,) in connection.execute(query).fetchall():
            chosen.setdefault(pack_id, why)
    for part in (1, 2, 3) if index.num_packs else ():
        chosen.setdefault(part * index.num_packs // 4, "")
    bars, table, capacity = [], [], index.snapshot.options.capacity
    for number, why in chosen.items():
        pack = index.pack(number)
        name, length = f"{number}: {why}" if why else str(number), pack.stats["length"]
        boxes = []
        for sample in pack.samples[:_MOST]:
            is_cut = bool(sample.piece or sample.token_start)
            whose = f"{short_name(sample.key, 60)} ({short_name(sample.source)})"
            title = f"{whose}: {format_count(sample.length)} tokens{', a piece' if is_cut else ''}"
            size = 100 * sample.padded_length / capacity
            boxes.append(Box(series.of(sample.source), size, title, is_cut))
        bars.append(Bar(name, boxes))
        longest = max(pack.samples, key=lambda sample: sample.length)
        row = (name, len(pack.samples), length, format_percent(length / capacity, 1))
        table.append((*row, short_name(longest.key, 60), longest.length))
    return Figure(
        "A few packs",
        "Each strip is a pack, each block one of its samples, as long as its tokens; blocks with "
        "a dashed edge are pieces of samples that were cut. Rest the pointer on a block for its "
        "key.",
        ("pack", "samples", "tokens", "fill", "longest sample", "its tokens"),
        table,
        bars,
        series.names,
        is_wide=True,
    )


def draw_lengths(connection: Any, series: Series, capacity: int) -> Figure:
    """Return the samples by length and source.

    Args:
        connection: DuckDB with the view ``lengths``.
        series: of the sources.
        capacity: of the plan.
    """
    columns = {row[0] for row in connection.execute("DESCRIBE lengths").fetchall()}
    source = "source" if "source" in columns else "NULL"
    usable = "status = 'ok' AND length > 0" if "status" in columns else "length > 0"
    rows = connection.execute(
        f"SELECT CAST(floor({_PER_OCTAVE} * log2(length)) AS INTEGER), {source}, count(*) "
        f"FROM lengths WHERE {usable} GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    held: dict[tuple[int, int], dict[int, int]] = {}
    for number, name, value in rows:
        low, high = (round(2 ** (edge / _PER_OCTAVE)) for edge in (number, number + 1))
        own = held.setdefault((low, high), dict.fromkeys(range(len(series.names)), 0))
        own[series.of(name)] += value
    totals = {ends: sum(own.values()) for ends, own in held.items()}
    bars = [
        (f"{low:,}–{high:,}", own, format_count(totals[low, high]))
        for (low, high), own in held.items()
    ]
    return Figure(
        "Samples by length and source",
        f"{format_count(sum(totals.values()))} samples in all, by tokens per sample. A pack holds "
        f"{format_count(capacity)}.",
        ("from", "to", "source", "samples"),
        [
            (*ends, series.names[colour], value)
            for ends, own in held.items()
            for colour, value in own.items()
            if value
        ],
        _draw_bars(bars, "samples", series.names),
        series.names,
    )
