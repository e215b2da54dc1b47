"""A lengths table that is there: whether it is the one that is asked for, and what it knows.

A shard is taken for the one that was counted, without being read, where its identity is the same
(`packidx.io.storage.Identity`); one of a store by its version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from msgspec import structs

from packidx.errors import FormatError
from packidx.estimate.compare import Compared
from packidx.estimate.job import EstimateJob, difference, make_manifest, recipe, recipe_of
from packidx.estimate.parts import OldParts, read_note
from packidx.estimate.tasks import Task, make_tasks
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout
from packidx.io import storage
from packidx.io.copies import StoredFile
from packidx.io.storage import reading
from packidx.records.containers.base import RecordRange
from packidx.records.containers.tar import APART, TAR
from packidx.records.shard_marks import is_unchanged
from packidx.records.shards import InputFile, ScannedShard
from packidx.software import installed, software


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
    def ranges(self) -> list[tuple[RecordRange, ...]]:
        """The ranges of each shard, as far as the notes are sound.

        Raises:
            OSError: a store cannot be asked.
        """
        ranges: list[list[RecordRange]] = [[] for _ in self.manifest.shards]
        for placed in storage.overlapped(_ranges_in, self.notes):
            for number, part in placed:
                ranges[number].append(part)
        return [tuple(own) for own in ranges]

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {each.name: each.layout or DEFAULT for each in self.manifest.sources}

    @cached_property
    def _by_uri(self) -> dict[str, int]:
        return {shard.uri: number for number, shard in enumerate(self.manifest.shards)}

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
        number = self._by_uri.get(file.uri)
        if number is None or self.manifest.software.get("packidx") != software()["packidx"]:
            return None
        shard, ranges = self.manifest.shards[number], self.ranges[number]
        if sum(part.num_records for part in ranges) != shard.rows:
            return None
        if file.container == TAR and APART in self.manifest.rejected:
            return None  # which keys come again, and which samples are torn, is in no note
        is_read_alike = _as_read(self._layouts[shard.source]) == _as_read(file.layout)
        if shard.container != file.container or not is_read_alike:
            return None
        with reading(file.path):
            if not is_unchanged(file.path, shard):
                return None
        return ScannedShard(structs.replace(shard, source=file.source, columns=None), ranges)

    def is_table_of(self, job: EstimateJob) -> bool:
        """Return whether it is the table that `job`, of which nothing is decided, would make:
        nothing is to be counted, and all stands in its place."""
        job, old = self._decided_as_here(job), OldParts()
        old.add(self.notes)
        tasks = make_tasks(job, old)
        for task in tasks:
            for placed, rows in zip(task.ranges, task.old, strict=True):
                if rows is None or rows.rows.place != placed.place:
                    return False
        engine = (self.manifest.text_engine or {}).get("name", "")
        if job.num_rows != self.manifest.num_samples or not self.notes:
            return False
        if not engine.startswith(job.wanted_backend or ""):
            return False
        try:
            parts = [
                structs.replace(read_note(note), note=file)
                for note, file in zip(self.notes, self.manifest.notes or (), strict=True)
            ]
        except FormatError:
            return False
        return _untimed(make_manifest(job, parts)) == _untimed(self.manifest)

    def _decided_as_here(self, job: EstimateJob) -> EstimateJob:
        """Return `job` with what was decided on the data of this table, whose processor is compared
        with the one that is installed now."""
        encoder, files = self.manifest.encoder, job.counter.files
        engine = self.manifest.text_engine
        stated, compared = None if encoder is None else encoder.compared, None
        if stated is not None:
            here = None if files is None or files.doubt else f"transformers {installed('transformers')}"
            compared = Compared(
                here, stated.get("reason"), tuple(stated.get("computed", ())), dict(stated.get("built", {}))
            )
        return replace(job, backend=None if engine is None else dict(engine), compared=compared)


def _ranges_in(note: StoredFile) -> list[tuple[int, RecordRange]]:
    """The number of its shard and the range of all rows of a part; nothing of a damaged note."""
    with contextlib.suppress(FormatError):
        return [(rows.place.shard, rows.range) for rows in read_note(note).ranges]
    return []


def _untimed(manifest: LengthsManifest) -> LengthsManifest:
    """`manifest` without what changes where a shard is touched or copied."""
    nothing = dict.fromkeys(("mtime", "identity", "version"))
    shards = tuple(structs.replace(shard, **nothing) for shard in manifest.shards)
    return structs.replace(manifest, shards=shards, digest="")


def _as_read(layout: Layout) -> Layout:
    """`layout` without what is the plan's."""
    return structs.replace(layout, sample_ratio=DEFAULT.sample_ratio)


def told(job: EstimateJob, tasks: Sequence[Task], damaged: list[str]) -> TakenOver:
    """Return what is told of rows that are taken over.

    Args:
        job: the job.
        tasks: all of it.
        damaged: parts that were of no use.
    """
    counted = [
        placed
        for task in tasks
        for placed, rows in zip(task.ranges, task.old, strict=True)
        if rows is None
    ]
    num_counted = sum(placed.range.num_records for placed in counted)
    shards = sorted({placed.shard.number for placed in counted})
    return TakenOver(
        num_samples=job.num_rows - num_counted,
        num_shards=len(job.shards) - len(shards),
        num_counted=num_counted,
        num_counted_shards=len(shards),
        counted=[job.shards[number].context.name for number in shards],
        damaged=damaged,
    )
