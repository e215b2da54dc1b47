"""Figures of a plan and of lengths: a question to the views, its rows as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packidx.format.manifest import SourceData
from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.inspect.facts import result_facts
from packidx.inspect.report import charts
from packidx.inspect.report.page import Figure, Row, Series, share, short_name
from packidx.plan.options import command_line
from packidx.plan.resolved import unusual
from packidx.records.ledger import by_use
from packidx.words import count

STEPS = 60
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
        says += f" {count(more)} smaller kinds are not shown."
    return Figure(title, says, columns, rows[:_MAX_ROWS], **figure) if rows else None


def _lying(rows: Sequence[Row], whole: float, what: str, digits: int = 1) -> dict[str, Any]:
    """A chart of name, value and whether it is red, with shares of `whole` in the labels, and its
    height."""
    lines = [
        (short_name(name), value, f"{count(value)} ({share(value, whole, digits)})", bad)
        for name, value, bad in rows
    ]
    return {"spec": charts.lying(lines, what), "height": max(30, 28 * len(lines))}


def tokens(index: Index, connection: Any) -> Figure:
    """Return where the tokens go: into packs, or out of the plan, by reason; and room that is
    left."""
    result, capacity = index.snapshot.result, index.snapshot.options.capacity
    dropped = _asked(
        connection,
        "SELECT reason, count(*), CAST(coalesce(sum(greatest(length, 0)), 0) AS BIGINT) "
        "FROM dropped GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1",
    )
    whole = result.num_tokens + sum(tokens for *_, tokens in dropped)
    room = result.num_packs * capacity - result.num_tokens
    parts = [
        ("in packs", result.num_samples, result.num_tokens, False),
        *((f"out: {why}", number, tokens, why not in BY_CHOICE) for why, number, tokens in dropped),
        ("room left in packs", None, room, False),
    ]
    return Figure(
        "Where the tokens go",
        "Shares are of the tokens that were counted, copies of a weighted source among those in "
        "packs. Red is lost; what was left out by choice is not.",
        ("", "samples", "tokens", "share"),
        [(name, number, tokens, share(tokens, whole, 2)) for name, number, tokens, _ in parts],
        **_lying([(name, tokens, bad) for name, _, tokens, bad in parts], whole, "tokens"),
    )


def fill(index: Index, connection: Any) -> Figure:
    """Packs by how full they are."""
    capacity, result = index.snapshot.options.capacity, index.snapshot.result
    shares = connection.execute(f"SELECT 100.0 * length / {capacity} AS fill FROM packs")
    numbers, _ = np.histogram(shares.fetchnumpy()["fill"], _FILL_EDGES)
    edges = zip(_FILL_EDGES, _FILL_EDGES[1:], strict=False)
    names = [f"{low:g}–{high:g} %" for low, high in edges]
    rows = list(zip(names, numbers.tolist(), strict=True))
    return Figure(
        "How full packs are",
        f"{100 * result.fill:.3f} % on average. No plan under the same options has fewer than "
        f"{count(result.lower_bound)} packs ({result.bound}); this one has "
        f"{count(result.num_packs)}, {result.gap_percent:.3f} % more.",
        ("fill", "packs"),
        rows,
        charts.bars(rows, "packs", "{value:,} packs are {name} full"),
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
        charts.bars(rows, "packs", "{value:,} packs of {name} samples"),
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
        (f"{of_ranks['ranks']} × {of_ranks['micro_steps']}", words, of_ranks[key]["useful"])
        for of_ranks in schedule
        for key, words in orders.items()
        if of_ranks[key] is not None and of_ranks[key]["useful"] is not None
    ]
    if not rows:
        return None
    return Figure(
        "Time in which no rank waits",
        "Ranks × micro-steps. All ranks of a micro-step wait for its slowest pack, by the plan's "
        "cost model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        [(ranks, words, share(useful, 1, 2)) for ranks, words, useful in rows],
        charts.grouped(rows, list(orders.values()), "useful time"),
    )


def steps(connection: Any, series: Series) -> Iterator[Figure]:
    """Yield what the steps of the first epoch hold: sources, and visual tokens; none without
    steps."""
    [(number,)] = _asked(
        connection,
        "SELECT coalesce(max(step) + 1, 0) FROM steps WHERE epoch = 0 AND step IS NOT NULL",
    )
    if number < 2:
        return
    shown = min(number, STEPS)
    chosen = sorted({at * number // shown for at in range(shown)})
    where = f"WHERE epoch = 0 AND step IN ({', '.join(map(str, chosen))})"
    which = "every step" if shown == number else f"{shown} of {count(number)} steps, evenly taken"
    if len(series.names) > 1:
        rows = _asked(
            connection,
            "SELECT step, source, CAST(sum(samples.length) AS BIGINT) FROM steps JOIN samples "
            f"USING (pack_id) {where} GROUP BY 1, 2 ORDER BY 1, 2",
        )
        yield _sources_of_steps(rows, series, which)
    visual = _asked(
        connection,
        "SELECT step, CAST(sum(coalesce(image_tokens, 0) + coalesce(video_tokens, 0)) AS BIGINT), "
        f"CAST(sum(length) AS BIGINT) FROM steps {where} GROUP BY 1 ORDER BY 1",
    )
    if any(row[1] for row in visual):
        yield _visual_of_steps(visual, which)


def _sources_of_steps(rows: Sequence[Any], series: Series, which: str) -> Figure:
    sums: dict[tuple[int, str], int] = {}
    totals: dict[int, int] = {}
    for step, source, tokens in rows:
        key = (step, series.of(source))
        sums[key] = sums.get(key, 0) + tokens
        totals[step] = totals.get(step, 0) + tokens
    parts = [
        (step, name, tokens, share(tokens, totals[step], 2))
        for (step, name), tokens in sorted(sums.items())
    ]
    return Figure(
        "Sources of each step",
        f"Shares of tokens, in the order of training with seed 0 ({which}). Even bands mean that "
        "every step has the whole mix; blocks mean that sources come one after the other.",
        ("step", "source", "share"),
        [(step, name, said) for step, name, _, said in parts],
        charts.shares(parts, series.names, "step", "share of tokens"),
    )


def _visual_of_steps(rows: Sequence[Any], which: str) -> Figure:
    names = ["text", "images and videos"]
    parts = [
        (step, name, part, share(part, tokens))
        for step, visual, tokens in rows
        for name, part in zip(names, (tokens - visual, visual), strict=True)
    ]
    return Figure(
        "Visual tokens of each step",
        f"In the order of training with seed 0 ({which}). An uneven edge means that some steps "
        "are for the vision tower and others for the language model.",
        ("step", "visual tokens", "tokens"),
        rows,
        charts.shares(parts, names, "step", "share of tokens"),
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
    blocks: list[Row] = []
    table = []
    capacity = index.snapshot.options.capacity
    for why, number in packs:
        pack = index.pack(number)
        name, length = f"{number}: {why}" if why else str(number), pack.stats["length"]
        for sample in pack.samples[:_MOST]:
            is_cut = bool(sample.piece or sample.token_start)
            whose = f"{short_name(sample.key, 60)} ({short_name(sample.source)})"
            told = f"{whose}: {count(sample.length)} tokens{', a piece' if is_cut else ''}"
            end = sample.start + sample.length
            blocks.append((name, series.of(sample.source), sample.start, end, is_cut, told))
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
        charts.strips(blocks, series.names, capacity),
        height=26 * len(packs),
        is_wide=True,
    )
    return [closely]


# -- lengths, planned or not -----------------------------------------------------------------------

_PER_OCTAVE = 4
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
    sums: dict[tuple[int, str], int] = {}
    for number, name, value in rows:
        key = (number, name if series is None else series.of(name))
        sums[key] = sums.get(key, 0) + value
    what, total = "tokens" if series is None else "samples", sum(sums.values())
    names = _MODALITIES if series is None else series.names
    shown = [name for name in names if any(key[1] == name for key in sums)]
    bars: list[Row] = []
    tops: dict[int, int] = {}
    for number, name in sorted(sums, key=lambda key: (key[0], shown.index(key[1]))):
        value, bottom = sums[number, name], tops.get(number, 0)
        tops[number] = bottom + value
        low, high = 2 ** (number / _PER_OCTAVE), 2 ** ((number + 1) / _PER_OCTAVE)
        bars.append((low, high, bottom, bottom + value, name, value))
    beyond = ""
    if capacity is not None and series is None:
        long = sum(value for low, *_, value in bars if low > capacity)
        beyond = f" {share(long, total)} of the tokens are in samples well above the capacity."
    return Figure(
        title,
        f"Each bar is a quarter of a doubling; {count(total)} {what} in all.{beyond}",
        ("from", "to", "series", what),
        [(round(low), round(high), name, value) for low, high, _, _, name, value in bars],
        charts.histogram(bars, "tokens per sample", what, shown, capacity),
    )


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
        "How lengths were got",
        f"{'; '.join(f'{method} is {_WAYS[method]}' for method in ways)}.",
        "SELECT source, coalesce(method, 'given') AS method, count(*) AS samples, "
        f"CAST(sum(length) AS BIGINT) AS tokens FROM counted WHERE {_USABLE} "
        "GROUP BY 1, 2 ORDER BY samples DESC, 1, 2",
        **_lying(bars, sum(totals.values()), "samples"),
    )


def rejected(connection: Any) -> Figure | None:
    """Records that are no samples, by reason, with an example each; None where there are none."""
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
        "Records that are no samples",
        f"{count(bad)} of {count(whole)} records were rejected when they were counted.",
        "SELECT reason, count(*) AS records, arg_min(source, sample_id) AS "
        '"for example: source", arg_min(key, sample_id) AS key, arg_min(detail, sample_id) AS '
        "detail FROM counted WHERE status = 'rejected' GROUP BY 1 ORDER BY records DESC, reason",
        **_lying(reasons, whole, "records", 2),
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
        "What is carried or not used changes no token. A column that nobody uses and that holds an "
        "image, turns or the like makes records “unused_column”, unless it is ignored."
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
    yield Figure("What it was made of", "", ("", ""), list(facts.items()), is_open=True)
    yield columns_used(snapshot.sources)
    if snapshot.recipe is not None:
        rows = [(line,) for line in snapshot.recipe.rstrip("\n").split("\n")[:200]]
        yield Figure("Its recipe", "", ("",), rows)
