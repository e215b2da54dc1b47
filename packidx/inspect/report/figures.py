"""Figures of a plan and of lengths: a question to the views, its rows as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packidx.format.manifest import SourceData
from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.inspect.facts import result_facts
from packidx.inspect.report.page import (
    BAD,
    GOOD,
    MODALITIES,
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
from packidx.plan.options import command_line
from packidx.plan.resolved import unusual
from packidx.records.ledger import by_use
from packidx.words import count, number_of

STEPS = 30
"""Of an epoch, that are shown."""
_FILL_EDGES = (0, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
_MAX_ROWS = 12
_MOST = 300
"""Samples of a pack that are drawn."""


def _asked(connection: Any, query: str) -> list[Any]:
    rows: list[Any] = connection.execute(query).fetchall()
    return rows


def _table(connection: Any, title: str, says: str, query: str, **figure: Any) -> Figure | None:
    """The first rows of a query, whose columns are named as they are headed; None without rows."""
    found = connection.execute(query)
    columns = [column[0] for column in found.description]
    rows = [
        tuple(short_name(cell, 160) if isinstance(cell, str) else cell for cell in row)
        for row in found.fetchall()
    ]
    if (more := len(rows) - _MAX_ROWS) > 0:
        says += f" {count(more)} smaller groups are not shown."
    return Figure(title, says, columns, rows[:_MAX_ROWS], **figure) if rows else None


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


def samples(connection: Any) -> Figure:
    """Packs by their number of samples."""
    found = _asked(
        connection,
        "SELECT min(num_samples), max(num_samples), count(*) FROM packs WHERE num_samples > 0 "
        "GROUP BY CAST(floor(2 * log2(num_samples)) AS INTEGER) ORDER BY 1",
    )
    rows = [(f"{low}" if low == high else f"{low}–{high}", number) for low, high, number in found]
    return Figure(
        "Samples per pack",
        "A wide spread is usual; packs of one sample alone gain nothing by packing.",
        ("samples", "packs"),
        rows,
        _bars([(*row, False) for row in rows], "packs"),
    )


def dropped(index: Index, connection: Any) -> Figure | None:
    """Samples that are in no pack, by reason, with examples; None where there are none."""
    number = index.snapshot.result.num_dropped
    return _table(
        connection,
        "Samples in no pack",
        f"{count(number)} samples, with the longest of each kind.",
        'SELECT reason, source, count(*) AS samples, arg_max(key, length) AS "for example", '
        "max(length) AS tokens, arg_max(detail, length) AS detail "
        "FROM dropped GROUP BY 1, 2 ORDER BY samples DESC, reason, source",
        is_open=True,
    )


def waiting(schedule: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """The share of time in which no rank waits; None where no number of ranks has a step."""
    orders = {"planned": f"this plan: {name}", "random": "random order"}
    orders["by_vision_tokens"] = "sorted by vision tokens"
    rows = [
        (f"{of_ranks['ranks']} × {of_ranks['micro_steps']}", number, of_ranks[key]["useful"])
        for of_ranks in schedule
        for number, key in enumerate(orders)
        if of_ranks[key] is not None and of_ranks[key]["useful"] is not None
    ]
    if not rows:
        return None
    drawn = sorted({number for _, number, _ in rows})
    words = [name for number, name in enumerate(orders.values()) if number <= drawn[-1]]
    bars = [(ranks, {number: useful}, share(useful, 1)) for ranks, number, useful in rows]
    return Figure(
        "Time in which no rank waits",
        "Ranks × micro-steps. All ranks of a micro-step wait for its slowest pack, by the plan's "
        "cost model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        [(ranks, words[number], share(useful, 1, 2)) for ranks, number, useful in rows],
        chart_of(bars, "useful", words, shown=lambda useful: share(useful, 1)),
    )


def steps(connection: Any, series: Series) -> Figure | None:
    """The sources of steps of the first epoch; None of one source, or without steps."""
    [(number,)] = _asked(
        connection,
        "SELECT coalesce(max(step) + 1, 0) FROM steps WHERE epoch = 0 AND step IS NOT NULL",
    )
    if number < 2 or len(series.names) < 2:
        return None
    shown = min(number, STEPS)
    chosen = sorted({at * number // shown for at in range(shown)})
    which = "every step" if shown == number else f"{shown} of {count(number)} steps, evenly taken"
    rows = _asked(
        connection,
        "SELECT step, source, CAST(sum(samples.length) AS BIGINT) FROM steps JOIN samples USING "
        f"(pack_id) WHERE epoch = 0 AND step IN ({', '.join(map(str, chosen))}) "
        "GROUP BY 1, 2 ORDER BY 1, 2",
    )
    stacks = _stacked(
        [(step, series.of(name), tokens) for step, name, tokens in rows], series.names
    )
    return Figure(
        "Sources of each step",
        f"Shares of tokens, in the order of training with seed 0 ({which}). Even bands mean that "
        "every step has the whole mix; blocks mean that sources come one after the other.",
        ("step", "source", "share"),
        [
            (step, series.names[colour], share(value, sum(values.values()), 2))
            for step, values in stacks.items()
            for colour, value in values.items()
            if value
        ],
        chart_of(
            [(f"step {step}", values, "") for step, values in stacks.items()],
            "its tokens",
            series.names,
            is_shares=True,
        ),
    )


def _stacked(
    rows: Sequence[Row], names: Sequence[str], first_colour: int = 0
) -> dict[Any, dict[int, int]]:
    """Sums by the first column, and by the colour of the name in the second, in its order."""
    stacks: dict[Any, dict[int, int]] = {}
    colours = range(first_colour, first_colour + len(names))
    for key, name, value in rows:
        own = stacks.setdefault(key, dict.fromkeys(colours, 0))
        own[colours[names.index(name)]] += value
    return stacks


def losses(connection: Any, series: Series) -> Figure:
    """Mean loss per label token of each source, over the steps of a run's log."""
    rows = _asked(
        connection,
        f"SELECT ntile, min(step), source, sum(loss) / sum(label_tokens), sum(label_tokens)::BIGINT"
        f" FROM (SELECT *, (dense_rank() OVER (ORDER BY epoch, step) - 1) * {STEPS} // greatest("
        f"{STEPS}, (SELECT count(DISTINCT (epoch, step)) FROM losses)) AS ntile FROM losses)"
        " GROUP BY 1, 3 ORDER BY 1, 3",
    )
    sums: dict[tuple[int, str], tuple[int, float, int]] = {}
    for part, step, source, loss, tokens in rows:
        name = series.of(source)
        before, summed, number = sums.get((part, name), (step, 0.0, 0))
        sums[part, name] = (min(before, step), summed + loss * tokens, number + tokens)
    told = [(*key, step, loss / tokens, tokens) for key, (step, loss, tokens) in sums.items()]
    top = max((loss for *_, loss, _ in told), default=1.0) or 1.0
    bars: dict[int, Bar] = {}
    for part, name, step, loss, _ in told:
        bar = bars.setdefault(part, Bar(f"from step {step}", []))
        says = f"{bar.name}, {name}: {loss:.3f}"
        bar.boxes.append(Box(series.names.index(name), 98.5 * loss / top, 1.5, says))
    return Figure(
        "Loss of each source",
        "Mean loss per label token of the steps that were logged, in the order of training, from 0 "
        f"to {top:.2f}. A sample that the log cannot tell counts as of no source.",
        ("from step", "source", "loss", "label tokens"),
        [(step, name, f"{loss:.4f}", tokens) for _, name, step, loss, tokens in told],
        Chart(list(bars.values()), series.names),
        is_wide=True,
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


def packs_closely(index: Index, connection: Any, series: Series) -> list[Figure]:
    """The samples of a few packs, end to end; nothing where there is no pack."""
    packs = chosen_packs(connection)
    if not packs:
        return []
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
    closely = Figure(
        "A few packs",
        "Each strip is a pack, each block one of its samples, as long as its tokens; blocks with "
        "a dashed edge are pieces of samples that were cut. Rest the pointer on a block for its "
        "key.",
        ("pack", "samples", "tokens", "fill", "longest sample", "its tokens"),
        table,
        Chart(bars, series.names),
        is_wide=True,
    )
    return [closely]


# -- lengths, planned or not -----------------------------------------------------------------------

_PER_OCTAVE = 2
_MODALITIES = ("text", "images", "video", "audio")
_MODALITY = (
    "CASE WHEN coalesce(audio_tokens, 0) > 0 THEN 'audio' WHEN coalesce(num_videos, 0) > 0 "
    "THEN 'video' WHEN coalesce(num_images, 0) > 0 THEN 'images' ELSE 'text' END"
)
_USABLE = "coalesce(status, 'ok') = 'ok' AND length > 0"
_READ = {
    "sample_id": "row_number() OVER () - 1",
    **dict.fromkeys(("source", "key", "method", "reason", "detail"), "NULL::VARCHAR"),
    "status": "'ok'",
    **dict.fromkeys(("num_images", "num_videos", "audio_tokens"), "0"),
}
"""Columns that are read, and what they are of a bare table that lacks them."""


def create_counted(connection: Any) -> None:
    """The view ``counted``: `lengths` with every column that is read here."""
    there = {row[0] for row in _asked(connection, "DESCRIBE lengths")}
    made = [f"{value} AS {name}" for name, value in _READ.items() if name not in there]
    connection.execute(f"CREATE TEMP VIEW counted AS SELECT {', '.join(['*', *made])} FROM lengths")


def lengths(
    connection: Any, series: Series, capacity: int | None = None
) -> Iterator[Figure | None]:
    """Distributions of lengths, by source and by what samples hold, and how they were counted.

    Args:
        connection: DuckDB with the view ``counted``.
        series: of the sources.
        capacity: of the plan, to be marked.
    """
    for title, expression, what in (
        ("Samples by length and source", "source", "samples"),
        ("Tokens by length and what samples hold", _MODALITY, "tokens"),
    ):
        rows = _asked(
            connection,
            f"SELECT CAST(floor({_PER_OCTAVE} * log2(length)) AS INTEGER) AS bin, {expression}, "
            f"{'count(*)' if what == 'samples' else 'CAST(sum(length) AS BIGINT)'} FROM counted "
            f"WHERE {_USABLE} GROUP BY 1, 2 ORDER BY 1, 2",
        )
        yield _distribution(title, rows, series if what == "samples" else None, capacity)
    yield _methods(connection)


def _distribution(
    title: str, rows: list[Row], series: Series | None, capacity: int | None
) -> Figure:
    """Samples by length and source, or tokens by length and modality where there is no `series`."""
    what, names = "tokens", [name for name in _MODALITIES if any(row[1] == name for row in rows)]
    if series is not None:
        what, names = "samples", series.names
        rows = [(number, series.of(name), value) for number, name, value in rows]
    first_colour = 0 if series is not None else MODALITIES
    held = _stacked(rows, names, first_colour)
    ends = {number: (round(_edge(number)), round(_edge(number + 1))) for number in sorted(held)}
    totals = {number: sum(held[number].values()) for number in ends}
    bars = [
        (f"{low:,}–{high:,}", held[number], count(totals[number]))
        for number, (low, high) in ends.items()
    ]
    says = f"{count(sum(totals.values()))} {what} in all, by tokens per sample."
    return Figure(
        title,
        says if capacity is None else f"{says} A pack holds {count(capacity)}.",
        ("from", "to", "series", what),
        [
            (*ends[number], names[colour - first_colour], value)
            for number in ends
            for colour, value in held[number].items()
            if value
        ],
        chart_of(bars, what, names, first_colour=first_colour),
    )


def _edge(number: int) -> float:
    """The shortest length of a bar."""
    return float(2 ** (number / _PER_OCTAVE))


_WAYS = {
    "exact": "counted as the processor does",
    "precomputed": "the records' own counts",
    "heuristic": "guessed",
    "given": "taken as given",
}


def _methods(connection: Any) -> Figure | None:
    """The ways by which lengths were got; None where no sample has one."""
    totals = dict(
        _asked(
            connection,
            "SELECT coalesce(method, 'given') AS method, count(*) FROM counted "
            f"WHERE {_USABLE} GROUP BY method",
        )
    )
    ways = [method for method in _WAYS if method in totals]
    bars = [(method, totals[method], method == "heuristic") for method in ways]
    return _table(
        connection,
        "How lengths were counted",
        f"{'; '.join(f'{method} is {_WAYS[method]}' for method in ways)}.",
        "SELECT source, coalesce(method, 'given') AS method, count(*) AS samples, "
        f"CAST(sum(length) AS BIGINT) AS tokens FROM counted WHERE {_USABLE} "
        "GROUP BY 1, 2 ORDER BY samples DESC, 1, 2",
        chart=_bars(bars, "samples", sum(totals.values())),
    )


def rejected(connection: Any) -> Figure | None:
    """Records that are not samples, by reason, with an example each; None where there are none."""
    [(whole, bad)] = _asked(
        connection, "SELECT count(*), count(*) FILTER (status = 'rejected') FROM counted"
    )
    reasons = _asked(
        connection,
        "SELECT reason, count(*) AS n, true FROM counted WHERE status = 'rejected' "
        f"GROUP BY 1 ORDER BY n DESC, reason LIMIT {_MAX_ROWS}",
    )
    return _table(
        connection,
        "Records that are not samples",
        f"{count(bad)} of {count(whole)} records were rejected when they were counted.",
        "SELECT reason, count(*) AS records, arg_min(source, sample_id) AS "
        '"for example: source", arg_min(key, sample_id) AS key, arg_min(detail, sample_id) AS '
        "detail FROM counted WHERE status = 'rejected' GROUP BY 1 ORDER BY records DESC, reason",
        chart=_bars(reasons, "records", whole, 2),
        is_open=True,
    )


def longest(connection: Any) -> Figure | None:
    """The longest samples by name."""
    return _table(
        connection,
        "Longest samples",
        "The five longest.",
        f"SELECT key, source, length AS tokens, {_MODALITY} AS holds FROM counted WHERE {_USABLE} "
        "ORDER BY length DESC, sample_id LIMIT 5",
        is_open=True,
    )


# -- where a plan is from: its certificate, its options, and its columns ---------------------------


def columns_used(sources: Sequence[SourceData]) -> Figure | None:
    """Return what each source's columns are used as; None where nobody looked."""
    rows = [(short_name(each.name), *by_use(each.columns)) for each in sources if each.columns]
    if not rows:
        return None
    says = (
        "Columns that are carried or not used change no token. A record is rejected "
        "(“unused_column”) where an unused column holds an image, turns or the like, unless "
        "that column is ignored."
    )
    header = ("source", "columns used as", "carried", "not used", "ignored")
    return Figure("Columns of the sources", says, header, rows, is_open=True, is_wide=True)


def origin(index: Index) -> Iterator[Figure | None]:
    """Yield the plan's certificate and provenance, as tables."""
    snapshot = index.snapshot
    facts = {
        "snapshot": snapshot.snapshot_id,
        "parent": snapshot.parent or "none",
        "written": f"{snapshot.created}, format {snapshot.VERSION}",
        **result_facts(snapshot),
        "table": snapshot.lengths.uri,
        "its fingerprint": snapshot.lengths.fingerprint,
        "software": ", ".join(f"{name} {v}" for name, v in snapshot.software.items()),
    }
    for number, before in enumerate(snapshot.options.continues):
        said = f"{before.snapshot_id}, after {count(before.position)} packs"
        facts[f"goes on from ({number + 1})"] = said
    facts["command"] = command_line(snapshot.lengths.uri, index.path, unusual(snapshot.options))
    yield Figure("How it was made", "", ("", ""), list(facts.items()), is_open=True)
    yield columns_used(snapshot.sources)
    if snapshot.recipe is not None:
        rows = [(line,) for line in snapshot.recipe.rstrip("\n").split("\n")[:200]]
        yield Figure("Its recipe", "", ("",), rows)
