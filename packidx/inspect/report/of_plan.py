"""What a plan looks like: where tokens go, how full packs are, who waits, what steps hold."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packidx.errors import PackidxError
from packidx.format.schema import Pack, Sample
from packidx.format.terms import BY_CHOICE
from packidx.index.reader import Index
from packidx.inspect.report import charts
from packidx.inspect.report.page import Figure, Picture, Series, count, share, short

_FILL_EDGES = (0, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
STEPS = 60
"""Of an epoch, that are shown."""
_MAX_ROWS = 12


def tokens_figure(index: Index, connection: Any) -> Figure:
    """Where the tokens go: into packs, or out of the plan, by reason; and room that is left."""
    result, capacity = index.snapshot.result, index.snapshot.options.capacity
    rows = connection.execute(
        "SELECT reason, count(*), coalesce(sum(greatest(length, 0)), 0) FROM dropped "
        "GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1"
    ).fetchall()
    room = result.num_packs * capacity - result.num_tokens
    parts: list[tuple[str, int | None, int, bool]] = [
        ("in packs", result.num_samples, result.num_tokens, False)
    ]
    parts += [
        (f"out: {reason}", number, int(tokens), reason not in BY_CHOICE)
        for reason, number, tokens in rows
    ]
    parts.append(("room left in packs", None, room, False))
    whole = sum(tokens for name, _, tokens, _ in parts if name != "room left in packs")
    values = [
        {
            "name": short(name),
            "value": tokens,
            "label": f"{count(tokens)} ({share(tokens, whole)})",
            "bad": bad,
            "told": f"{name}: {count(tokens)} tokens",
        }
        for name, _, tokens, bad in parts
    ]
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
        charts.lying(values, "tokens"),
        height=28 * len(values),
    )


def fill_figure(index: Index, connection: Any) -> Figure:
    """Packs by how full they are."""
    capacity = index.snapshot.options.capacity
    rows = connection.execute(
        f"SELECT 100.0 * length / {capacity} AS fill FROM packs ORDER BY 1"
    ).fetchnumpy()["fill"]
    values: list[dict[str, Any]] = []
    for low, high in zip(_FILL_EDGES, _FILL_EDGES[1:], strict=False):
        is_last = high == _FILL_EDGES[-1]
        number = int(((rows >= low) & ((rows <= high) if is_last else (rows < high))).sum())
        name = f"{low:g}–{high:g} %"
        told = f"{count(number)} packs are {name} full"
        values.append({"name": name, "value": number, "told": told})
    result = index.snapshot.result
    return Figure(
        "How full packs are",
        f"{100 * result.fill:.3f} % on average. No plan under the same options has fewer than "
        f"{count(result.lower_bound)} packs ({result.bound}); this one has "
        f"{count(result.num_packs)}, {result.gap_percent:.3f} % more.",
        ("fill", "packs"),
        [(value["name"], count(value["value"])) for value in values],
        charts.bars(values, "packs"),
    )


def samples_figure(connection: Any) -> Figure:
    """Packs by their number of samples."""
    rows = connection.execute(
        "SELECT CAST(floor(2 * log2(num_samples)) AS INTEGER) AS bin, min(num_samples), "
        "max(num_samples), count(*) FROM packs WHERE num_samples > 0 GROUP BY 1 ORDER BY 1"
    ).fetchall()
    values = []
    for _, low, high, number in rows:
        name = f"{low}" if low == high else f"{low}–{high}"
        told = f"{count(number)} packs of {name} samples"
        values.append({"name": name, "value": number, "told": told})
    return Figure(
        "Samples per pack",
        "A wide spread is usual; packs of one sample alone gain nothing by packing.",
        ("samples", "packs"),
        [(value["name"], count(value["value"])) for value in values],
        charts.bars(values, "packs"),
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
    values: list[dict[str, Any]] = []
    for of_ranks in schedule:
        for key, words in orders.items():
            order = of_ranks[key]
            if order is None or order["useful"] is None:
                continue
            ranks = f"{of_ranks['ranks']} × {of_ranks['micro_steps']}"
            told = f"{ranks}, {words}: {100 * order['useful']:.2f} % useful"
            values.append({"name": ranks, "series": words, "value": order["useful"], "told": told})
    if not values:
        return None
    return Figure(
        "Time in which no rank waits",
        "Ranks × micro-steps. All ranks of a micro-step wait for its slowest pack, by the plan's "
        "cost model; the rest of the time is lost.",
        ("ranks × micro-steps", "order", "useful time"),
        [(v["name"], v["series"], f"{100 * v['value']:.2f} %") for v in values],
        charts.grouped(values, list(orders.values()), "useful time"),
    )


def steps_figures(connection: Any, series: Series) -> list[Figure]:
    """What the steps of the first epoch hold: sources, and visual tokens; none without steps."""
    steps = connection.execute(
        "SELECT max(step) + 1, count(*) FROM steps WHERE epoch = 0 AND step IS NOT NULL"
    ).fetchone()
    number = steps[0] or 0
    if number < 2:
        return []
    shown = min(number, STEPS)
    chosen = sorted({at * number // shown for at in range(shown)})
    of_steps = (
        "FROM steps JOIN samples USING (pack_id) WHERE epoch = 0 AND step IN "
        f"({', '.join(map(str, chosen))})"
    )
    rows = connection.execute(
        f"SELECT step, source, sum(samples.length) {of_steps} GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    which = "every step" if shown == number else f"{shown} of {count(number)} steps, evenly taken"
    figures = []
    if len(series.names) > 1:
        figures.append(_sources_of_steps(rows, series, which))
    visual = connection.execute(
        "SELECT step, sum(coalesce(image_tokens, 0) + coalesce(video_tokens, 0)), sum(length) "
        f"FROM steps WHERE epoch = 0 AND step IN ({', '.join(map(str, chosen))}) "
        "GROUP BY 1 ORDER BY 1"
    ).fetchall()
    if any(row[1] for row in visual):
        figures.append(_visual_of_steps(visual, which))
    return figures


def _sources_of_steps(rows: Sequence[Any], series: Series, which: str) -> Figure:
    sums: dict[tuple[int, str], int] = {}
    totals: dict[int, int] = {}
    for step, source, tokens in rows:
        key = (step, series.of(source))
        sums[key] = sums.get(key, 0) + int(tokens)
        totals[step] = totals.get(step, 0) + int(tokens)
    values: list[dict[str, Any]] = [
        {
            "name": step,
            "series": name,
            "value": tokens,
            "order": series.order(name),
            "told": f"step {step}, {name}: {share(tokens, totals[step])} of its tokens",
        }
        for (step, name), tokens in sorted(sums.items())
    ]
    return Figure(
        "Sources of each step",
        f"Shares of tokens, in the order of training with seed 0 ({which}). Even bands mean that "
        "every step has the whole mix; blocks mean that sources come one after the other.",
        ("step", "source", "share"),
        [(v["name"], v["series"], share(v["value"], totals[v["name"]], 2)) for v in values],
        charts.shares(values, series.names, "step", "share of tokens"),
    )


def _visual_of_steps(rows: Sequence[Any], which: str) -> Figure:
    values = []
    for step, visual, tokens in rows:
        for order, (name, part) in enumerate(
            (("text", int(tokens - visual)), ("images and videos", int(visual)))
        ):
            told = f"step {step}, {name}: {share(part, tokens)} of its tokens"
            values.append(
                {"name": step, "series": name, "value": part, "order": order, "told": told}
            )
    return Figure(
        "Visual tokens of each step",
        f"In the order of training with seed 0 ({which}). An uneven edge means that some steps "
        "are for the vision tower and others for the language model.",
        ("step", "visual tokens", "tokens"),
        [(step, count(visual), count(tokens)) for step, visual, tokens in rows],
        charts.shares(values, ["text", "images and videos"], "step", "share of tokens"),
    )


_MOST = 300
"""Samples of a pack that are drawn."""
_EDGE = 160
"""Pixels of a thumbnail's longer side."""


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
    values, table = [], []
    capacity = index.snapshot.options.capacity
    for why, number in packs:
        pack = index.pack(number)
        name = f"{number}: {why}" if why else str(number)
        for sample in pack.samples[:_MOST]:
            end = sample.start + sample.length
            whose = f"{short(sample.key, 60)} ({short(sample.source)})"
            told = f"{whose}: {count(sample.length)} tokens"
            values.append(
                {
                    "name": name,
                    "series": series.of(sample.source),
                    "start": sample.start,
                    "end": end,
                    "cut": _is_cut(sample),
                    "told": told + (", a piece" if _is_cut(sample) else ""),
                }
            )
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
        charts.strips(values, series.names, capacity),
        height=26 * len(packs),
        is_wide=True,
    )


def _is_cut(sample: Sample) -> bool:
    return bool(sample.piece or sample.token_start)


def pictures(
    index: Index, packs: list[tuple[str, int]], wanted: int, notes: list[str]
) -> Iterator[Picture]:
    """Up to `wanted` images of the packs' samples, small; what cannot be read goes to `notes`."""
    from packidx.records.fetch import Fetcher

    if index.snapshot.lengths.transform is not None:
        notes.append("thumbnails: the plan has a transform, which a report does not run")
        return
    fetcher = Fetcher(index)
    made, failed = 0, 0
    for _, number in packs:
        pack: Pack = index.pack(number)
        for sample in pack.samples:
            if made >= wanted or failed >= 3:
                return
            if sample.media is not None and not sample.media:
                continue
            try:
                record = fetcher.read(sample, pack.stats["epoch"] or 0)
            except (PackidxError, OSError) as error:
                failed += 1
                notes.append(f"thumbnail of {short(sample.key, 60)}: {error}")
                continue
            for image in _images(record)[:1]:
                made += 1
                yield Picture(f"pack {number}, {short(sample.key, 60)}", _small(image))


def _images(value: Any) -> list[Any]:
    """Opened images of a record, wherever they are in it."""
    from PIL.Image import Image

    if isinstance(value, Image):
        return [value]
    if isinstance(value, dict):
        return [image for member in value.values() for image in _images(member)]
    if isinstance(value, list | tuple):
        return [image for member in value for image in _images(member)]
    return []


def _small(image: Any) -> bytes:
    small = image.convert("RGB")
    small.thumbnail((_EDGE, _EDGE))
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=60)
    return buffer.getvalue()
