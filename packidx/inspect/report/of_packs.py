"""A few packs, drawn as strips of their samples."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from packidx.errors import PackidxError
from packidx.format.schema import Pack, Sample
from packidx.index.reader import Index
from packidx.inspect.report import charts
from packidx.inspect.report.figure import Figure, Picture
from packidx.inspect.report.words import Series, count, share, short

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
