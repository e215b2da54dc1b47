"""Reuse of the lengths table that is there: as it is, or by the rows of tasks.

The rows of a task are reused if the manifest has the task's key. A shard that has the URI, the
size and the time of change (in a store: the version) of the manifest's is not scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from msgspec import structs

from packidx.errors import FormatError
from packidx.estimate.compare import Compared
from packidx.estimate.job import EstimateJob, difference, draft_manifest
from packidx.estimate.parts import PASSING_REASONS, OldRows, rows_in, stem
from packidx.estimate.tasks import PartPlan, plan_parts
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout
from packidx.io.copies import StoredFile
from packidx.records.containers.base import file_version
from packidx.records.containers.tar import TORN
from packidx.records.shards import InputFile, ScannedShard, ranges_of
from packidx.software import installed, software


@dataclass(frozen=True, slots=True)
class Reused:
    """The rows of a table that are an earlier one's, and why the others are not."""

    num_samples: int = 0
    """Rows that were reused."""
    num_counted: int = 0
    """Rows that were counted."""
    counted: list[str] = field(default_factory=list)
    """Shards of which some rows were counted."""
    reason: str | None = None
    """Why nothing was reused at all."""


@dataclass(frozen=True)
class Earlier:
    """A lengths table whose rows may be reused.

    Args:
        path: its folder.
        manifest: its manifest.
    """

    path: str
    manifest: LengthsManifest

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {each.name: each.layout or DEFAULT for each in self.manifest.sources}

    @cached_property
    def _by_uri(self) -> dict[str, int]:
        return {shard.uri: number for number, shard in enumerate(self.manifest.shards)}

    @cached_property
    def _rows(self) -> dict[str, OldRows] | str:
        """The rows by the keys of their tasks, or what is wrong with a part."""
        files = [file.within(self.path) for file in self.manifest.files]
        try:
            return rows_in(files, self.manifest.keys or [()] * len(files))
        except FormatError as error:
            return str(error).partition(":")[0]

    def known_scan(self, file: InputFile) -> ScannedShard | None:
        """Return the scan of an unchanged file; None if it must be scanned.

        Raises:
            SourceError: it cannot be read.
        """
        number = self._by_uri.get(file.uri)
        if number is None or self.manifest.software.get("packidx") != software()["packidx"]:
            return None
        if TORN in self.manifest.rejected:
            return None  # a manifest does not say which samples are torn
        shard = self.manifest.shards[number]
        ranges, layout = ranges_of(shard), _as_read(self._layouts[shard.source])
        if (shard.container, layout) != (file.container, _as_read(file.layout)):
            return None
        if sum(part.num_records for part in ranges) != shard.rows:
            return None
        if (shard.bytes, shard.version) != file_version(file.path):
            return None
        return ScannedShard(structs.replace(shard, source=file.source), ranges)

    def is_table_of(self, job: EstimateJob) -> bool:
        """Return True if `job`, of which nothing is decided, would make this very table."""
        job, names = self._decided_as_here(job), [stem(file.path) for file in self.manifest.files]
        return (
            job.counter.is_known
            and PASSING_REASONS.isdisjoint(self.manifest.rejected)
            and _stated(draft_manifest(job)) == _stated(self.manifest)
            and [plan.name for plan in plan_parts(job)] == names
            and not isinstance(self._rows, str)
        )

    def _decided_as_here(self, job: EstimateJob) -> EstimateJob:
        """Return `job` with what was decided on the data of this table, whose processor is compared
        with the one that is installed now."""
        encoder, comparer = self.manifest.encoder, job.counter.comparer
        engine = self.manifest.text_engine
        compared = None
        if encoder is not None and encoder.compared is not None:
            is_real = comparer is not None and comparer.real is not None
            here = f"transformers {installed('transformers')}" if is_real else None
            compared = Compared.from_json({**encoder.compared, "with": here})
        return replace(job, backend=None if engine is None else dict(engine), compared=compared)

    def find_rows(self, job: EstimateJob) -> tuple[dict[str, OldRows], Reused]:
        """Return the rows that `job` can reuse by the keys of their tasks, and why others are not.

        Raises:
            OSError: a part cannot be read.
        """
        if not job.counter.is_known:
            return {}, Reused(reason="its encoder has no fingerprint to be known by")
        if reason := difference(draft_manifest(job), self.manifest):
            return {}, Reused(reason=reason)
        rows = self._rows
        return ({}, Reused(reason=rows)) if isinstance(rows, str) else (rows, Reused())


def _stated(manifest: LengthsManifest) -> list[Any]:
    """Return the members of a manifest that counting does not change, without times of change."""
    return [
        *(manifest.options, manifest.transform, manifest.software),
        manifest.encoder and structs.replace(manifest.encoder, compared=None),
        manifest.text_engine,
        [structs.replace(shard, version=None) for shard in manifest.shards],
        [(each.name, each.media_root, each.remote_media, each.layout) for each in manifest.sources],
    ]


def _as_read(layout: Layout) -> Layout:
    """`layout` without what is the plan's."""
    return structs.replace(layout, sample_ratio=DEFAULT.sample_ratio)


def reuse(
    plans: Sequence[PartPlan], finished: dict[str, StoredFile], rows: dict[str, OldRows]
) -> list[PartPlan]:
    """Return `plans` with the parts and rows that they reuse.

    Args:
        finished: parts of a killed run, by their names up to the key.
        rows: of an earlier table, by the keys of their tasks.
    """
    return [
        replace(
            plan,
            finished=finished.get(plan.name),
            old=tuple(rows.get(task.key) for task in plan.tasks),
        )
        for plan in plans
    ]


def reused_of(job: EstimateJob, plans: Sequence[PartPlan], found: Reused) -> Reused:
    """Return how many rows are reused, and which shards are counted."""
    counted = [task for plan in plans for task in plan.counted]
    num_counted = sum(task.range.num_records for task in counted)
    names = list(dict.fromkeys(task.shard.name for task in counted))
    num_reused = job.num_rows - num_counted
    return replace(found, num_samples=num_reused, num_counted=num_counted, counted=names)
