"""The five figures of a report: each a query over the views, a table and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.inspect.report.page import (
    BAD,
    GOOD,
    Bar,
    Box,
    Chart,
    Figure,
    Row,
    Series,
    chart_of,
    share,
    short_name,
)
from packidx.words import count, number_of

_FILL_EDGES = (0, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
_MOST = 300
"""Samples of a pack that are drawn."""


def _asked(connection: Any, query: str) -> list[Any]:
    rows: list[Any] = connection.execute(query).fetchall()
    return rows


def _bars(rows: Sequence[Row], what: str, whole: float = 0, digits: int = 1) -> Chart:
    """A chart of name, value and whether it is red, with shares of `whole` in the labels."""
    bars = []
    for name, value, is_bad in rows:
        label = f"{count(value)} ({share(value, whole, digits)})" if whole else count(value)
        bars.append((short_name(name), {BAD if is_bad else GOOD: value}, label))
    return chart_of(bars, what)


def tokens(index: Index, connection: Any) -> Figure:
    """Return where the tokens go: into packs, or out of the plan, by reason; and room that is
    left."""
    result, capacity = index.snapshot.result, index.snapshot.options.capacity
    dropped = _asked(
        connection,
        "SELECT reason, count(*), CAST(coalesce(sum(greatest(length, 0)), 0) AS BIGINT) "
        "FROM dropped GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1",
    )
    room = result.num_packs * capacity - result.num_tokens
    parts = [
        ("in packs", result.num_samples, result.num_tokens, False),
        *((f"out: {why}", number, tokens, why not in BY_CHOICE) for why, number, tokens in dropped),
        *([("cut off packed samples", None, cut, True)] if (cut := result.num_tokens_cut) else ()),
        ("room left in packs", None, room, False),
    ]
    lost = "all are in packs"
    if result.num_tokens_lost:
        part = share(result.num_tokens_lost, result.num_tokens_eligible)
        lost = f"{part} are in no pack (red)"
    return Figure(
        "Where the tokens go",
        f"Of the {count(result.num_tokens_eligible)} tokens that were to be packed, {lost}. "
        "Samples that were left out by choice do not count. Packs hold every copy of a sample.",
        ("", "samples", "tokens"),
        [(name, number, tokens) for name, number, tokens, _ in parts],
        _bars([(name, tokens, is_bad) for name, _, tokens, is_bad in parts], "tokens"),
    )


def fill(index: Index, connection: Any) -> Figure:
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
        f"{count(result.num_packs)}, {result.gap_percent:.3f} % more.",
        ("fill", "packs"),
        rows,
        _bars([(*row, False) for row in rows], "packs"),
    )


def waiting(schedule: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """The share of time in which no rank waits; None where no number of ranks has a step."""
    orders = {"planned": f"this plan: {name}", "random": "random order"}
    orders["by_vision_tokens"] = "sorted by vision tokens"
    rows = [
        (
            f"{of_ranks['ranks']} × {of_ranks['micro_steps']}",
            number,
            of_ranks[key]["useful_by_phase"],
        )
        for of_ranks in schedule
        for number, key in enumerate(orders)
        if of_ranks[key] is not None and of_ranks[key]["useful_by_phase"] is not None
    ]
    if not rows:
        return None
    drawn = sorted({number for _, number, _ in rows})
    words = [name for number, name in enumerate(orders.values()) if number <= drawn[-1]]
    bars = [(ranks, {number: useful}, share(useful, 1)) for ranks, number, useful in rows]
    return Figure(
        "Step balance",
        "Time in which no rank waits, by ranks × micro-steps. All ranks of a micro-step wait for "
        "its slowest pack, in the vision tower and in the language model, by the plan's cost "
        "model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        [(ranks, words[number], share(useful, 1, 2)) for ranks, number, useful in rows],
        chart_of(bars, "useful", words, shown=lambda useful: share(useful, 1)),
    )


def chosen_packs(connection: Any) -> list[tuple[str, int]]:
    """Packs that are worth a look, and why: extremes, and three of the middle; each once."""
    wanted = {
        "most samples": "num_samples DESC",
        "most visual": "coalesce(image_tokens, 0) + coalesce(video_tokens, 0) DESC",
        "emptiest": "length",
    }
    packs: dict[int, str] = {}
    for why, order in wanted.items():
        query = f"SELECT pack_id FROM packs ORDER BY {order}, pack_id LIMIT 1"
        for (pack,) in _asked(connection, query):
            packs.setdefault(pack, why)
    [(number,)] = _asked(connection, "SELECT count(*) FROM packs")
    for part in (1, 2, 3):
        packs.setdefault(part * number // 4, "")
    return [(why, pack) for pack, why in packs.items() if pack < number]


def packs_closely(index: Index, connection: Any, series: Series) -> Figure | None:
    """The samples of a few packs, end to end; None without packs."""
    packs = chosen_packs(connection)
    if not packs:
        return None
    bars: list[Bar] = []
    table = []
    capacity = index.snapshot.options.capacity
    for why, number in packs:
        pack = index.pack(number)
        name, length = f"{number}: {why}" if why else str(number), pack.stats["length"]
        boxes = []
        for sample in pack.samples[:_MOST]:
            is_cut = bool(sample.piece or sample.token_start)
            whose = f"{short_name(sample.key, 60)} ({short_name(sample.source)})"
            told = f"{whose}: {count(sample.length)} tokens{', a piece' if is_cut else ''}"
            start, size = (100 * part / capacity for part in (sample.start, sample.length))
            colour = series.names.index(series.of(sample.source))
            boxes.append(Box(colour, start, size, told, is_cut))
        bars.append(Bar(name, boxes))
        longest = max(pack.samples, key=lambda sample: sample.length)
        row = (name, len(pack.samples), length, share(length, capacity))
        table.append((*row, short_name(longest.key, 60), longest.length))
    return Figure(
        "A few packs",
        "Each strip is a pack, each block one of its samples, as long as its tokens; blocks with "
        "a dashed edge are pieces of samples that were cut. Rest the pointer on a block for its "
        "key.",
        ("pack", "samples", "tokens", "fill", "longest sample", "its tokens"),
        table,
        Chart(bars, series.names),
        is_wide=True,
    )


_PER_OCTAVE = 2


def lengths(connection: Any, series: Series, capacity: int | None = None) -> Figure:
    """Return the samples by length and source.

    Args:
        connection: DuckDB with the view ``lengths``.
        series: of the sources.
        capacity: of the plan, None without one.
    """
    columns = {row[0] for row in _asked(connection, "DESCRIBE lengths")}
    source = "source" if "source" in columns else "NULL"
    usable = "status = 'ok' AND length > 0" if "status" in columns else "length > 0"
    rows = _asked(
        connection,
        f"SELECT CAST(floor({_PER_OCTAVE} * log2(length)) AS INTEGER), {source}, count(*) "
        f"FROM lengths WHERE {usable} GROUP BY 1, 2 ORDER BY 1, 2",
    )
    held: dict[int, dict[int, int]] = {}
    for number, name, value in rows:
        own = held.setdefault(number, dict.fromkeys(range(len(series.names)), 0))
        own[series.names.index(series.of(name))] += value
    ends = {number: (round(_edge(number)), round(_edge(number + 1))) for number in held}
    totals = {number: sum(held[number].values()) for number in ends}
    says = f"{count(sum(totals.values()))} samples in all, by tokens per sample."
    return Figure(
        "Samples by length and source",
        says if capacity is None else f"{says} A pack holds {count(capacity)}.",
        ("from", "to", "source", "samples"),
        [
            (*ends[number], series.names[colour], value)
            for number in ends
            for colour, value in held[number].items()
            if value
        ],
        chart_of(
            [
                (f"{low:,}–{high:,}", held[number], count(totals[number]))
                for number, (low, high) in ends.items()
            ],
            "samples",
            series.names,
        ),
    )


def _edge(number: int) -> float:
    """Return the shortest length of a bar."""
    return float(2 ** (number / _PER_OCTAVE))
