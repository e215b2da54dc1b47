"""What lengths look like: a table of samples, planned or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.inspect.report import charts
from packidx.inspect.report.page import Figure, Row, Series, count, share, short

_PER_OCTAVE = 4
_MODALITIES = ("text", "images", "video", "audio")
_MODALITY = (
    "CASE WHEN coalesce(audio_tokens, 0) > 0 THEN 'audio' WHEN coalesce(num_videos, 0) > 0 "
    "THEN 'video' WHEN coalesce(num_images, 0) > 0 THEN 'images' ELSE 'text' END"
)
_USABLE = "coalesce(status, 'ok') = 'ok' AND length > 0"
_MAX_ROWS = 12
"""Of a table of names: what is more is summed up in its last line."""


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
        capacity: of the plan, to be marked.
    """
    bin_of = f"CAST(floor({_PER_OCTAVE} * log2(length)) AS INTEGER)"
    for title, expression, names, what in (
        ("Samples by length and source", "source", series.names, "samples"),
        ("Tokens by length and what samples hold", _MODALITY, _MODALITIES, "tokens"),
    ):
        value = "count(*)" if what == "samples" else "sum(length)"
        rows = connection.execute(
            f"SELECT {bin_of} AS bin, {expression} AS series, {value} FROM counted "
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
        sums[key] = sums.get(key, 0) + int(value)
    what = "tokens" if series is None else "samples"
    shown = [name for name in names if any(key[1] == name for key in sums)]
    values: list[dict[str, Any]] = []
    tops: dict[int, int] = {}
    for number, name in sorted(sums, key=lambda key: (key[0], shown.index(key[1]))):
        value, bottom = sums[number, name], tops.get(number, 0)
        tops[number] = bottom + value
        low, high = 2 ** (number / _PER_OCTAVE), 2 ** ((number + 1) / _PER_OCTAVE)
        told = f"{low:,.0f} to {high:,.0f} tokens, {name}: {count(value)} {what}"
        at = {"low": low, "high": high, "bottom": bottom, "top": bottom + value}
        values.append({**at, "value": value, "series": name, "told": told})
    total = sum(sums.values())
    table = [
        (f"{value['low']:,.0f}", f"{value['high']:,.0f}", value["series"], count(value["value"]))
        for value in values
    ]
    beyond = ""
    if capacity is not None and series is None:
        long = sum(value["value"] for value in values if value["low"] > capacity)
        beyond = f" {share(long, total)} of the tokens are in samples well above the capacity."
    says = f"Each bar is a quarter of a doubling; {count(total)} {what} in all.{beyond}"
    spec = charts.histogram(values, "tokens per sample", what, shown, capacity)
    return Figure(title, says, ("from", "to", "series", what), table, spec)


def _methods(connection: Any) -> Figure:
    rows = connection.execute(
        f"SELECT source, coalesce(method, 'given') AS method, count(*), sum(length) FROM counted "
        f"WHERE {_USABLE} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
    ).fetchall()
    totals: dict[str, int] = {}
    for _, method, number, _ in rows:
        totals[method] = totals.get(method, 0) + number
    whole = sum(totals.values())
    ways = {
        "exact": "counted as the processor does",
        "precomputed": "the records' own counts",
        "heuristic": "guessed",
        "given": "taken as given",
    }
    values = [
        {
            "name": method,
            "value": totals[method],
            "label": f"{count(totals[method])} ({share(totals[method], whole)})",
            "bad": method == "heuristic",
            "told": f"{method}, {ways[method]}: {count(totals[method])} samples",
        }
        for method in ways
        if method in totals
    ]
    said = "; ".join(f"{method} is {ways[method]}" for method in ways if method in totals)
    table = [
        (short(source), method, count(number), count(tokens))
        for source, method, number, tokens in rows[:_MAX_ROWS]
    ]
    return Figure(
        "How lengths were got",
        f"{said}." if said else "No sample has a length.",
        ("source", "method", "samples", "tokens"),
        table,
        charts.lying(values, "samples"),
        height=max(30, 28 * len(values)),
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
    whole = connection.execute("SELECT count(*) FROM counted").fetchone()[0]
    values = [
        {
            "name": short(reason),
            "value": number,
            "label": f"{count(number)} ({share(number, whole, 2)})",
            "bad": True,
            "told": f"{reason}: {count(number)} records",
        }
        for reason, number, *_ in rows[:_MAX_ROWS]
    ]
    table = [
        (short(reason), count(number), short(source), short(key, 60), short(detail or "", 160))
        for reason, number, source, key, detail in rows[:_MAX_ROWS]
    ]
    total = sum(row[1] for row in rows)
    return Figure(
        "Records that are no samples",
        f"{count(total)} of {count(whole)} records were rejected when they were counted.",
        ("reason", "records", "for example: source", "key", "detail"),
        table,
        charts.lying(values, "records"),
        height=max(30, 28 * len(values)),
        is_open=True,
    )


def longest_figure(connection: Any) -> Figure:
    """The longest samples by name."""
    rows = connection.execute(
        f"SELECT key, source, length, {_MODALITY} FROM counted WHERE {_USABLE} "
        "ORDER BY length DESC, sample_id LIMIT 5"
    ).fetchall()
    table = [
        (short(key, 60), short(source), count(length), kind) for key, source, length, kind in rows
    ]
    return Figure(
        "Longest samples",
        "The five longest.",
        ("key", "source", "tokens", "holds"),
        table,
        is_open=True,
    )
