"""A lengths table that is there: whether it is the one that is asked for, and what it knows.

A shard is taken for the one that was counted, without being read, where its identity is the same
(`packidx.io.identity`); one of a store by its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from packidx.errors import FormatError
from packidx.estimate.comparison import may_be_compared_now
from packidx.estimate.job import (
    DECIDED,
    EstimateJob,
    Recipe,
    difference,
    placed_ranges,
    recipe,
    recipe_of,
)
from packidx.estimate.parts import OldParts, read_note
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout, Shard
from packidx.io.copies import StoredFile, are_whole
from packidx.io.storage import reading
from packidx.records.containers.tar import DUPLICATE, TAR
from packidx.records.shard_marks import is_unchanged, ranges_of
from packidx.records.shards import InputFile, ScannedShard
from packidx.software import software


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The part of a table that is an earlier one's, and why the rest is not."""

    num_samples: int = 0
    """Rows that were taken over."""
    num_shards: int = 0
    """Shards all of whose rows were."""
    num_counted: int = 0
    """Rows that were counted."""
    num_counted_shards: int = 0
    counted: list[str] = field(default_factory=list)
    """Shards of which some rows were counted."""
    reason: str | None = None
    """Why nothing was taken over at all."""
    damaged: list[str] = field(default_factory=list)
    """Parts of the earlier table that were of no use."""


@dataclass(frozen=True)
class Earlier:
    """A lengths table whose rows may be taken over.

    Args:
        path: where it is.
        manifest: what it says.
    """

    path: str
    manifest: LengthsManifest

    @cached_property
    def notes(self) -> list[StoredFile]:
        """What its parts are made of; nothing where it does not say it."""
        return [file.within(self.path) for file in self.manifest.notes or ()]

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {each.name: each.layout or DEFAULT for each in self.manifest.sources}

    @cached_property
    def _by_uri(self) -> dict[str, Shard]:
        return {shard.uri: shard for shard in self.manifest.shards}

    def difference(self, job: EstimateJob) -> str | None:
        """Return why no row may stand in the table of `job`: it was made in another way, or does
        not say how."""
        if not job.counter.is_known:
            return "its encoder has no fingerprint to be known by"
        if reason := difference(recipe(job), recipe_of(self.manifest)):
            return reason
        return None if self.notes else "it does not say what its rows were made of"

    def known_scan(self, file: InputFile) -> ScannedShard | None:
        """Return what a scan of `file` would find, if it is certainly the one that was counted.

        Raises:
            SourceError: it cannot be read.
        """
        shard = self._by_uri.get(file.uri)
        if shard is None or self.manifest.software.get("packidx") != software()["packidx"]:
            return None
        if file.container == TAR and DUPLICATE in self.manifest.rejected:
            return None  # which keys come again is not in the manifest
        ranges, layout = ranges_of(shard), self._layouts[shard.source]
        if shard.container != file.container or _as_read(layout) != _as_read(file.layout):
            return None
        with reading(file.path):
            if ranges is None or not is_unchanged(file.path, shard):
                return None
        return ScannedShard(replace(shard, source=file.source, columns=None), ranges)

    def is_table_of(self, job: EstimateJob) -> bool:
        """Return whether it is the table that `job`, of which nothing is decided, would make:
        nothing changed, and all that records refer to is what it was."""
        made_alike = self._decided_as_here(job)
        if made_alike is None or not self.notes:
            return False
        mine = [*placed_ranges(job, made_alike)]
        noted = OldParts().add(self.notes)
        if [(rows.key, rows.place) for rows in noted] != [(each.key, each.place) for each in mine]:
            return False
        files = [file.within(self.path) for file in self.manifest.files]
        stated = [_stated(shard.stated) for shard in job.shards]
        if [*map(_stated, self.manifest.shards)] != stated or self._layouts != job.layouts:
            return False
        if any(each.key is None for each in mine) or not are_whole(files):
            return False
        roots = iter([each.shard.root for each in mine])
        try:
            return all(
                rows.references.are_unchanged(next(roots))
                for note in self.notes
                for rows in read_note(note).ranges
            )
        except FormatError:
            return False

    def _decided_as_here(self, job: EstimateJob) -> Recipe | None:
        """Return the recipe of `job` with what this table has decided on the data; None where that
        may come out otherwise now."""
        compared = None if self.manifest.encoder is None else self.manifest.encoder.compared
        doubt = None if job.counter.files is None else job.counter.files.doubt
        if compared is not None and may_be_compared_now(compared, doubt):
            return None
        theirs = recipe_of(self.manifest)
        if not str(theirs["text_engine"]).startswith(job.wanted_backend or ""):
            return None
        return recipe(job) | {name: theirs[name] for name in DECIDED}


def _as_read(layout: Layout) -> Layout:
    """`layout` without what is the plan's."""
    return replace(layout, sample_ratio=DEFAULT.sample_ratio)


def _stated(shard: Shard) -> tuple[Any, ...]:
    """What a table's fingerprint has of a shard, and where it is."""
    return shard.uri, shard.source, shard.container, shard.fingerprint, shard.bytes, shard.rows


def told(job: EstimateJob, counted: Sequence[tuple[int, int]], damaged: list[str]) -> TakenOver:
    """Return what is told of rows that are taken over.

    Args:
        counted: number of the shard, and number of records, of each range that is not.
        damaged: parts that were of no use.
    """
    num_counted = sum(number for _, number in counted)
    shards = sorted({number for number, _ in counted})
    return TakenOver(
        num_samples=job.num_rows - num_counted,
        num_shards=len(job.shards) - len(shards),
        num_counted=num_counted,
        num_counted_shards=len(shards),
        counted=[job.shards[number].context.name for number in shards],
        damaged=damaged,
    )
