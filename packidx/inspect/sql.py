"""What SQL asks: an index or a lengths table, and the views that one query has of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack

from packidx.errors import FormatError, NotFoundInIndex, SourceError
from packidx.format.lengths import KnownTable, known_table
from packidx.index import Index, open_index
from packidx.index.tables import (
    ABOUT,
    OF_LENGTHS,
    VIEWS,
    StepOptions,
    Steps,
    Views,
    planned_lengths,
    views_of_index,
    views_of_lengths,
)
from packidx.io import urls


@dataclass(frozen=True, slots=True)
class Asked:
    """An index at one snapshot, or a lengths table."""

    path: str
    index: Index | None
    lengths: KnownTable | None
    steps: Steps | None
    """Of the view `steps`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The views that it may have."""
        return OF_LENGTHS if self.index is None else VIEWS

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        if self.index is not None:
            return repr(self.index)
        return f"lengths table {self.path}"

    def about(self) -> list[tuple[str, int | None, str]]:
        """Name of each view, its number of rows, where it is known, and what a row is; of one that
        is absent, why."""
        rows, absent = self._rows(), {}
        if self.index is not None:
            try:
                planned_lengths(self.index)
            except (SourceError, FormatError) as error:
                absent = dict.fromkeys(("lengths", "rejected"), str(error))
        return [
            (name, None, f"absent: {absent[name]}")
            if name in absent
            else (name, rows.get(name), ABOUT[name])
            for name in self.names
        ]

    def _rows(self) -> dict[str, int | None]:
        """Rows of the views, by what manifests say."""
        table = None if self.lengths is None else self.lengths.manifest
        if self.index is None:
            if table is None:
                return {}
            sizes = {"lengths": table.num_samples, "rejected": table.num_rejected}
            return {**sizes, "sources": len(table.sources)}
        snapshot = self.index.snapshot
        rejected = [source.num_rejected for source in snapshot.sources]
        steps = self.steps
        return {
            "packs": snapshot.result.num_packs,
            "samples": snapshot.result.num_pieces,
            "dropped": snapshot.result.num_dropped,
            "lengths": snapshot.lengths.num_samples,
            "rejected": None if None in rejected else sum(n or 0 for n in rejected),
            "sources": len(snapshot.sources),
            "steps": None if steps is None else sum(map(steps.epochs.num_packs, steps.numbers)),
        }

    @contextlib.contextmanager
    def views(self, query: str) -> Iterator[Views]:
        """What `query` may read, as long as the block.

        Args:
            query: tables in an object store that it does not name are left out, unless it names
                none; the steps are computed only where it names them.

        Raises:
            FormatError: a file is missing or damaged.
            OSError: a store cannot be asked.
        """
        named = {name for name in self.names if re.search(rf"\b{name}\b", query, re.I)}
        with contextlib.ExitStack() as stack:
            if self.lengths is not None:
                yield views_of_lengths(stack, self.lengths, self.path)
            elif self.index is not None:
                steps = self.steps if "steps" in named else None
                yield views_of_index(stack, self.index, named or set(VIEWS), steps)


def asked(path: str, roots: Mapping[str, str], **steps: Unpack[StepOptions]) -> Asked:
    """Open what is at `path`.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or what `packidx plan` takes for lengths.
        roots: ``{old: new}`` path prefixes, for data that has moved.
        steps: of the view `steps`.

    Raises:
        NotFoundInIndex: there is no index, and no lengths table.
        FormatError: a manifest that is broken or of a newer version.
        OptionError: `steps` make no sense together.
        OSError: a store cannot be asked.
    """
    try:
        index = open_index(path, roots)
    except NotFoundInIndex:
        with contextlib.suppress(SourceError):
            return Asked(path, None, known_table(urls.local_path(path)), None)
        raise
    return Asked(path, index, None, Steps.of(index.snapshot, **steps))
