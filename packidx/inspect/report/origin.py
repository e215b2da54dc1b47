"""Where a plan is from: its certificate, its options, its columns, and images of its samples."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packidx.errors import PackidxError
from packidx.format.index import Options
from packidx.format.manifest import SourceData
from packidx.format.schema import Pack
from packidx.index.reader import Index
from packidx.inspect.report.page import Figure, Picture, count, short
from packidx.plan.cost_model import DEFAULT_PRESET
from packidx.plan.cost_model import parse as parse_cost
from packidx.plan.options import DEFAULTS, OPTIONS, PlanOptions, command_line
from packidx.plan.resolved import inherited
from packidx.records.ledger import by_use

_EDGE = 160
"""Pixels of a thumbnail's longer side."""


def asked_for(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that differ from the defaults, and the capacity."""
    values = inherited(options)
    if parse_cost(DEFAULT_PRESET).to_json() == options.cost_model.to_json():
        del values["cost"]
    if options.epochs > 1:
        values["epochs"] = options.epochs
    if not options.margin:
        del values["margin"]
    return {
        name: value
        for name, value in values.items()
        if name == "capacity" or value not in (DEFAULTS[name], None, ())
    }


def preview_options(options: Options) -> PlanOptions:
    """The plan's options that a preview of another capacity looks at, padding left aside."""
    values = inherited(options)
    names = [name for name, said in OPTIONS.items() if said.is_previewed and name in values]
    kept = {name: values[name] for name in names if name not in ("align", "pad_pack_to", "reserve")}
    return PlanOptions(**kept)


def columns_figure(sources: Sequence[SourceData]) -> Figure | None:
    """What each source's columns are used as; None where nobody looked."""
    rows = [(short(each.name), *by_use(each.columns)) for each in sources if each.columns]
    if not rows:
        return None
    says = (
        "What is carried or not used changes no token. A column that nobody uses and that holds an "
        "image, turns or the like makes records “unused_column”, unless it is ignored."
    )
    header = ("source", "columns used as", "carried", "not used", "ignored")
    return Figure("Columns of the sources", says, header, rows, is_open=True, is_wide=True)


def origin_figures(index: Index) -> list[Figure]:
    """The plan's certificate and provenance, as tables."""
    snapshot = index.snapshot
    result, lengths, options = snapshot.result, snapshot.lengths, snapshot.options
    encoder = lengths.encoder
    compared: Mapping[str, Any] = (encoder.compared if encoder else None) or {}
    told = compared.get("with") and f"with {compared['with']}, {compared.get('records')} samples"
    facts = [
        ("snapshot", snapshot.snapshot_id),
        ("parent", snapshot.parent or "none"),
        ("written", f"{snapshot.created}, format {snapshot.VERSION}"),
        ("packs", f"{count(result.num_packs)}, at least {count(result.lower_bound)} needed"),
        ("bound", f"{result.bound}; gap {count(result.gap)} ({result.gap_percent:.3f} %)"),
        ("strategy", f"{options.strategy}: {', '.join(result.strategies)}"),
        ("lengths", lengths.uri),
        ("their fingerprint", lengths.fingerprint),
        ("counted by", encoder.name if encoder else "not stated"),
        ("compared", told or compared.get("reason") or "not stated"),
        ("margin", f"{100 * (1 - options.planned_capacity / options.capacity):.2f} % kept free"),
        ("software", ", ".join(f"{name} {v}" for name, v in snapshot.software.items())),
    ]
    for number, before in enumerate(options.continues):
        said = f"{before.snapshot_id}, after {count(before.position)} packs"
        facts.append((f"goes on from ({number + 1})", said))
    if options.appends_to:
        facts.append(("appends to", options.appends_to))
    facts.append(("command", command_line(lengths.uri, index.path, asked_for(options))))
    figures = [
        Figure("What it was made of", "", ("", ""), [f for f in facts if f[1]], is_open=True)
    ]
    columns = columns_figure(snapshot.sources)
    figures += [] if columns is None else [columns]
    if snapshot.recipe is not None:
        rows = [(line,) for line in snapshot.recipe.rstrip("\n").split("\n")[:200]]
        figures.append(Figure("Its recipe", "", ("",), rows))
    return figures


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


def _small(image: Any) -> str:
    """A WebP file in base64."""
    small = image.convert("RGB")
    small.thumbnail((_EDGE, _EDGE))
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=60)
    return base64.b64encode(buffer.getvalue()).decode()
