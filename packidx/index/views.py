"""The tables that can be asked of an index: those in its files, and those made from them.

`packidx sql`, `Index.duckdb`, `Index.to_arrow` and `Index.to_polars` have the same ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from packidx.errors import FormatError, SourceError
from packidx.format.index import TABLE_NAMES
from packidx.format.table_files import KnownTable
from packidx.index.order.steps import Steps
from packidx.index.tables import planned_lengths, source_rows
from packidx.io import urls
from packidx.io.copies import local_copies

if TYPE_CHECKING:
    from packidx.index.reader import Index

OF_LENGTHS = ("lengths", "rejected", "sources")
VIEWS = (*TABLE_NAMES, *OF_LENGTHS, "steps")
"""All there are; a lengths table has those `OF_LENGTHS`."""

ABOUT = {
    "packs": "a row per pack: its length, and the sums of its samples",
    "samples": "a row per sample, or piece of one, in a pack, and where its record lies",
    "dropped": "a row per sample that is in no pack, and why",
    "lengths": "a row per sample that was counted",
    "rejected": "the rows of lengths that could not be counted, and why",
    "sources": "a row per data set of the mix",
    "steps": "a row per pack in the order of training: when, and the columns of packs",
}
"""What a row of each is."""


@dataclass(frozen=True)
class Views:
    """What the views read: plain data, so that another process can make them."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """Of this machine, by the view that reads them."""
    sources: list[dict[str, Any]] | None = None
    steps: Steps | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Why a view is not there."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> Views:
        """The inverse of `to_json`."""
        steps = stated["steps"]
        return cls(**{**stated, "steps": None if steps is None else Steps.read(steps)})


def views_of_lengths(stack: contextlib.ExitStack, table: KnownTable, uri: str) -> Views:
    """What can be asked of a lengths table, as long as `stack` is open."""
    views = Views({"lengths": stack.enter_context(local_copies(table.files))})
    if table.manifest is None:
        why = f"{uri} is bare Parquet, which names no sources: ask its column source, if it has one"
        views.absent["sources"] = f"there is no view sources: {why}"
        return views
    return Views(views.files, source_rows(table.manifest, None))


def views_of_index(
    stack: contextlib.ExitStack, index: Index, names: Collection[str], steps: Steps | None
) -> Views:
    """What can be asked of an index, as long as `stack` is open.

    Args:
        names: the views that are asked; what is in an object store is fetched for these alone.
        steps: None where they are not asked.
    """
    wanted = {*names, *(["packs"] if "steps" in names else [])}
    rows = source_rows(index.snapshot, index.snapshot.options.weights)
    views = Views(sources=rows, steps=steps)
    for name in TABLE_NAMES:
        if name in wanted or not urls.is_url(index.path):
            views.files[name] = stack.enter_context(index.local_files(name))
    is_asked = wanted & {"lengths", "rejected"}
    if is_asked or not urls.is_url(index.resolve(index.snapshot.lengths.uri)):
        try:
            parts = planned_lengths(index).files
            views.files["lengths"] = stack.enter_context(local_copies(parts))
        except (SourceError, FormatError) as error:
            for name in ("lengths", "rejected"):
                views.absent[name] = f"there is no view {name}: {error}"
    return views
