"""Figures of a plan and of lengths: a question to the views, its rows as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.inspect.report import charts
from packidx.inspect.report.page import Figure, Row, Series, count, share, short

STEPS = 60
"""Of an epoch, that are shown."""
_FILL_EDGES = (0, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
_MAX_ROWS = 12
_MOST = 300
"""Samples of a pack that are drawn."""


def tokens_figure(index: Index, connection: Any) -> Figure:
    """Return where the tokens go: into packs, or out of the plan, by reason; and room that is
    left."""
    result, capacity = index.snapshot.result, index.snapshot.options.capacity
    rows = connection.execute(
        "SELECT reason, count(*), CAST(coalesce(sum(greatest(length, 0)), 0) AS BIGINT) "
        "FROM dropped GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1"
    ).fetchall()
    whole = result.num_tokens + sum(tokens for *_, tokens in rows)
    room = result.num_packs * capacity - result.num_tokens
    parts: list[tuple[str, int | None, int, bool]] = [
        ("in packs", result.num_samples, result.num_tokens, False),
        *((f"out: {why}", number, tokens, why not in BY_CHOICE) for why, number, tokens in rows),
        ("room left in packs", None, room, False),
    ]
    lines = []
    for name, _, tokens, bad in parts:
        label, told = f"{count(tokens)} ({share(tokens, whole)})", f"{name}: {count(tokens)} tokens"
        lines.append((short(name), tokens, label, bad, told))
    table = [
        (name, "–" if number is None else count(number), count(tokens), share(tokens, whole, 2))
        for name, number, tokens, _ in parts
    ]
    return Figure(
        "Where the tokens go",
        "Shares are of the tokens that were counted, copies of a weighted source among those in "
        "packs. Red is lost; what was left out by choice is not.",
        ("", "samples", "tokens", "share"),
        table,
        charts.lying(lines, "tokens"),
        height=28 * len(lines),
    )


def fill_figure(index: Index, connection: Any) -> Figure:
    """Packs by how full they are."""
    capacity, result = index.snapshot.options.capacity, index.snapshot.result
    fill = connection.execute(f"SELECT 100.0 * length / {capacity} AS fill FROM packs")
    values = fill.fetchnumpy()["fill"]
    rows = []
    for low, high in zip(_FILL_EDGES, _FILL_EDGES[1:], strict=False):
        below = values <= high if high == _FILL_EDGES[-1] else values < high
        rows.append((f"{low:g}–{high:g} %", int(((values >= low) & below).sum())))
    return Figure(
        "How full packs are",
        f"{100 * result.fill:.3f} % on average. No plan under the same options has fewer than "
        f"{count(result.lower_bound)} packs ({result.bound}); this one has "
        f"{count(result.num_packs)}, {result.gap_percent:.3f} % more.",
        ("fill", "packs"),
        [(name, count(number)) for name, number in rows],
        charts.bars([(*row, f"{count(row[1])} packs are {row[0]} full") for row in rows], "packs"),
    )


def samples_figure(connection: Any) -> Figure:
    """Packs by their number of samples."""
    found = connection.execute(
        "SELECT CAST(floor(2 * log2(num_samples)) AS INTEGER) AS bin, min(num_samples), "
        "max(num_samples), count(*) FROM packs WHERE num_samples > 0 GROUP BY 1 ORDER BY 1"
    ).fetchall()
    rows = [(f"{low}" if low == high else f"{low}–{high}", n) for _, low, high, n in found]
    told = [(*row, f"{count(row[1])} packs of {row[0]} samples") for row in rows]
    return Figure(
        "Samples per pack",
        "A wide spread is usual; packs of one sample alone gain nothing by packing.",
        ("samples", "packs"),
        [(name, count(number)) for name, number in rows],
        charts.bars(told, "packs"),
    )


def dropped_figure(connection: Any) -> Figure | None:
    """Samples that are in no pack, by reason, with examples; None where there are none."""
    rows = connection.execute(
        "SELECT reason, source, count(*) AS n, arg_max(key, length), max(length), "
        "arg_max(detail, length) FROM dropped GROUP BY 1, 2 ORDER BY n DESC, reason, source"
    ).fetchall()
    if not rows:
        return None
    table = [
        (
            short(reason),
            short(source),
            count(number),
            short(key, 60),
            "–" if length is None else count(length),
            short(detail or "", 160),
        )
        for reason, source, number, key, length, detail in rows[:_MAX_ROWS]
    ]
    more = len(rows) - len(table)
    says = f"{count(sum(row[2] for row in rows))} samples, with the longest of each kind"
    return Figure(
        "Samples in no pack",
        f"{says}; {more} smaller kinds are not shown." if more > 0 else f"{says}.",
        ("reason", "source", "samples", "for example", "tokens", "detail"),
        table,
        is_open=True,
    )


def waiting_figure(schedule: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """The share of time in which no rank waits; None where no number of ranks has a step."""
    orders = {"planned": f"this plan: {name}", "random": "random order"}
    orders["by_vision_tokens"] = "sorted by vision tokens"
    rows: list[tuple[str, str, float]] = [
        (f"{of_ranks['ranks']} × {of_ranks['micro_steps']}", words, of_ranks[key]["useful"])
        for of_ranks in schedule
        for key, words in orders.items()
        if of_ranks[key] is not None and of_ranks[key]["useful"] is not None
    ]
    if not rows:
        return None
    table = [(ranks, words, f"{100 * useful:.2f} %") for ranks, words, useful in rows]
    told = [f"{ranks}, {words}: {useful} useful" for ranks, words, useful in table]
    return Figure(
        "Time in which no rank waits",
        "Ranks × micro-steps. All ranks of a micro-step wait for its slowest pack, by the plan's "
        "cost model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        table,
        charts.grouped(
            [(*row, said) for row, said in zip(rows, told, strict=True)],
            list(orders.values()),
            "useful time",
        ),
    )


def steps_figures(connection: Any, series: Series) -> Iterator[Figure]:
    """Yield what the steps of the first epoch hold: sources, and visual tokens; none without
    steps."""
    number, *_ = connection.execute(
        "SELECT coalesce(max(step) + 1, 0) FROM steps WHERE epoch = 0 AND step IS NOT NULL"
    ).fetchone()
    if number < 2:
        return
    shown = min(number, STEPS)
    chosen = sorted({at * number // shown for at in range(shown)})
    where = f"WHERE epoch = 0 AND step IN ({', '.join(map(str, chosen))})"
    which = "every step" if shown == number else f"{shown} of {count(number)} steps, evenly taken"
    if len(series.names) > 1:
        rows = connection.execute(
            "SELECT step, source, CAST(sum(samples.length) AS BIGINT) FROM steps JOIN samples "
            f"USING (pack_id) {where} GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()
        yield _sources_of_steps(rows, series, which)
    visual = connection.execute(
        "SELECT step, CAST(sum(coalesce(image_tokens, 0) + coalesce(video_tokens, 0)) AS BIGINT), "
        f"CAST(sum(length) AS BIGINT) FROM steps {where} GROUP BY 1 ORDER BY 1"
    ).fetchall()
    if any(row[1] for row in visual):
        yield _visual_of_steps(visual, which)


def _sources_of_steps(rows: Sequence[Any], series: Series, which: str) -> Figure:
    sums: dict[tuple[int, str], int] = {}
    totals: dict[int, int] = {}
    for step, source, tokens in rows:
        key = (step, series.of(source))
        sums[key] = sums.get(key, 0) + tokens
        totals[step] = totals.get(step, 0) + tokens
    table, parts = [], []
    for (step, name), tokens in sorted(sums.items()):
        said = share(tokens, totals[step], 2)
        told = f"step {step}, {name}: {said} of its tokens"
        table.append((step, name, said))
        parts.append((step, name, tokens, series.order(name), told))
    return Figure(
        "Sources of each step",
        f"Shares of tokens, in the order of training with seed 0 ({which}). Even bands mean that "
        "every step has the whole mix; blocks mean that sources come one after the other.",
        ("step", "source", "share"),
        table,
        charts.shares(parts, series.names, "step", "share of tokens"),
    )


def _visual_of_steps(rows: Sequence[Any], which: str) -> Figure:
    names = ["text", "images and videos"]
    parts = [
        (
            step,
            names[at],
            part,
            at,
            f"step {step}, {names[at]}: {share(part, tokens)} of its tokens",
        )
        for step, visual, tokens in rows
        for at, part in enumerate((tokens - visual, visual))
    ]
    return Figure(
        "Visual tokens of each step",
        f"In the order of training with seed 0 ({which}). An uneven edge means that some steps "
        "are for the vision tower and others for the language model.",
        ("step", "visual tokens", "tokens"),
        [(step, count(visual), count(tokens)) for step, visual, tokens in rows],
        charts.shares(parts, names, "step", "share of tokens"),
    )


def chosen_packs(connection: Any) -> list[tuple[str, int]]:
    """Packs that are worth a look, and why: extremes, and three of the middle; each once."""
    visual = "coalesce(image_tokens, 0) + coalesce(video_tokens, 0)"
    wanted = [
        ("most samples", "num_samples DESC, pack_id"),
        ("most visual", f"{visual} DESC, pack_id"),
        ("emptiest", "length, pack_id"),
    ]
    packs: dict[int, str] = {}
    for why, order in wanted:
        row = connection.execute(f"SELECT pack_id FROM packs ORDER BY {order} LIMIT 1").fetchone()
        if row is not None:
            packs.setdefault(row[0], why)
    number = connection.execute("SELECT count(*) FROM packs").fetchone()[0]
    for part in (1, 2, 3):
        packs.setdefault(part * number // 4, "")
    return [(why, pack) for pack, why in packs.items() if pack < number]


def packs_figure(index: Index, packs: list[tuple[str, int]], series: Series) -> Figure:
    """The samples of packs, end to end."""
    blocks: list[Row] = []
    table = []
    capacity = index.snapshot.options.capacity
    for why, number in packs:
        pack = index.pack(number)
        name = f"{number}: {why}" if why else str(number)
        for sample in pack.samples[:_MOST]:
            is_cut = bool(sample.piece or sample.token_start)
            whose = f"{short(sample.key, 60)} ({short(sample.source)})"
            told = f"{whose}: {count(sample.length)} tokens{', a piece' if is_cut else ''}"
            end = sample.start + sample.length
            blocks.append((name, series.of(sample.source), sample.start, end, is_cut, told))
        longest = max(pack.samples, key=lambda sample: sample.length)
        table.append(
            (
                name,
                count(len(pack.samples)),
                count(pack.stats["length"]),
                share(pack.stats["length"], capacity),
                short(longest.key, 60),
                count(longest.length),
            )
        )
    return Figure(
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
    there = {row[0] for row in connection.execute("DESCRIBE lengths").fetchall()}
    made = [f"{value} AS {name}" for name, value in _READ.items() if name not in there]
    connection.execute(f"CREATE TEMP VIEW counted AS SELECT {', '.join(['*', *made])} FROM lengths")


def lengths_figures(
    connection: Any, series: Series, capacity: int | None = None
) -> Iterator[Figure]:
    """Distributions of lengths, by source and by what samples hold, and how they were counted.

    Args:
        connection: DuckDB with the view ``counted``.
        series: of the sources.
        capacity: of the plan, to be marked.
    """
    for title, expression, names, what in (
        ("Samples by length and source", "source", series.names, "samples"),
        ("Tokens by length and what samples hold", _MODALITY, _MODALITIES, "tokens"),
    ):
        rows = connection.execute(
            f"SELECT CAST(floor({_PER_OCTAVE} * log2(length)) AS INTEGER) AS bin, {expression}, "
            f"{'count(*)' if what == 'samples' else 'CAST(sum(length) AS BIGINT)'} FROM counted "
            f"WHERE {_USABLE} GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()
        yield _distribution(title, rows, series if what == "samples" else None, names, capacity)
    yield _methods(connection)


def _distribution(
    title: str, rows: list[Row], series: Series | None, names: Any, capacity: int | None
) -> Figure:
    sums: dict[tuple[int, str], int] = {}
    for number, name, value in rows:
        key = (number, name if series is None else series.of(name))
        sums[key] = sums.get(key, 0) + value
    what, total = "tokens" if series is None else "samples", sum(sums.values())
    shown = [name for name in names if any(key[1] == name for key in sums)]
    bars: list[Row] = []
    table: list[Row] = []
    tops: dict[int, int] = {}
    long = 0
    for number, name in sorted(sums, key=lambda key: (key[0], shown.index(key[1]))):
        value, bottom = sums[number, name], tops.get(number, 0)
        top = tops[number] = bottom + value
        low, high = 2 ** (number / _PER_OCTAVE), 2 ** ((number + 1) / _PER_OCTAVE)
        told = f"{low:,.0f} to {high:,.0f} tokens, {name}: {count(value)} {what}"
        bars.append((low, high, bottom, top, name, told))
        table.append((count(low), count(high), name, count(value)))
        long += value if capacity is not None and low > capacity else 0
    beyond = ""
    if capacity is not None and series is None:
        beyond = f" {share(long, total)} of the tokens are in samples well above the capacity."
    says = f"Each bar is a quarter of a doubling; {count(total)} {what} in all.{beyond}"
    spec = charts.histogram(bars, "tokens per sample", what, shown, capacity)
    return Figure(title, says, ("from", "to", "series", what), table, spec)


_WAYS = {
    "exact": "counted as the processor does",
    "precomputed": "the records' own counts",
    "heuristic": "guessed",
    "given": "taken as given",
}


def _methods(connection: Any) -> Figure:
    rows = connection.execute(
        f"SELECT source, coalesce(method, 'given') AS method, count(*), sum(length) FROM counted "
        f"WHERE {_USABLE} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
    ).fetchall()
    totals: dict[str, int] = {}
    for _, method, number, _ in rows:
        totals[method] = totals.get(method, 0) + number
    whole = sum(totals.values())
    ways = {method: words for method, words in _WAYS.items() if method in totals}
    said = "; ".join(f"{method} is {words}" for method, words in ways.items())
    lines = [
        (
            method,
            totals[method],
            f"{count(totals[method])} ({share(totals[method], whole)})",
            method == "heuristic",
            f"{method}, {words}: {count(totals[method])} samples",
        )
        for method, words in ways.items()
    ]
    table = [
        (short(source), method, count(number), count(tokens))
        for source, method, number, tokens in rows[:_MAX_ROWS]
    ]
    return Figure(
        "How lengths were got",
        f"{said}." if said else "No sample has a length.",
        ("source", "method", "samples", "tokens"),
        table,
        charts.lying(lines, "samples"),
        height=max(30, 28 * len(lines)),
    )


def rejected_figure(connection: Any) -> Figure | None:
    """Records that are no samples, by reason, with an example each; None where there are none."""
    rows = connection.execute(
        "SELECT reason, count(*) AS n, arg_min(source, sample_id), arg_min(key, sample_id), "
        "arg_min(detail, sample_id) FROM counted WHERE status = 'rejected' "
        "GROUP BY 1 ORDER BY n DESC, reason"
    ).fetchall()
    if not rows:
        return None
    total = sum(row[1] for row in rows)
    whole = connection.execute("SELECT count(*) FROM counted").fetchone()[0]
    lines = []
    for reason, number, *_ in rows[:_MAX_ROWS]:
        label, told = f"{count(number)} ({share(number, whole, 2)})", f"{reason}: {count(number)}"
        lines.append((short(reason), number, label, True, f"{told} records"))
    table = [
        (short(reason), count(number), short(source), short(key, 60), short(detail or "", 160))
        for reason, number, source, key, detail in rows[:_MAX_ROWS]
    ]
    return Figure(
        "Records that are no samples",
        f"{count(total)} of {count(whole)} records were rejected when they were counted.",
        ("reason", "records", "for example: source", "key", "detail"),
        table,
        charts.lying(lines, "records"),
        height=max(30, 28 * len(lines)),
        is_open=True,
    )


def longest_figure(connection: Any) -> Figure:
    """The longest samples by name."""
    rows = connection.execute(
        f"SELECT key, source, length, {_MODALITY} FROM counted WHERE {_USABLE} "
        "ORDER BY length DESC, sample_id LIMIT 5"
    ).fetchall()
    return Figure(
        "Longest samples",
        "The five longest.",
        ("key", "source", "tokens", "holds"),
        [
            (short(key, 60), short(source), count(length), kind)
            for key, source, length, kind in rows
        ],
        is_open=True,
    )
