"""Reuse of the lengths table that is there: as it is, or by the rows of tasks.

The rows of a task are reused if a part has the task's key. A shard that has the URI, the size and
the time of change (in a store: the version) of the manifest's is not scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec import structs

from packidx.errors import FormatError
from packidx.estimate.job import EstimateJob, difference, draft_manifest
from packidx.estimate.parts import OldRows, rows_in
from packidx.estimate.tasks import PartPlan
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout
from packidx.records.containers.base import file_version
from packidx.records.containers.tar import TORN
from packidx.records.shards import InputFile, ScannedShard, ranges_of
from packidx.software import software


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
        try:
            parts = (file.within(self.path) for file in self.manifest.files)
            return rows_in(zip(parts, self.manifest.keys or (), strict=False))
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

    def is_made_of(self, job: EstimateJob, plans: Sequence[PartPlan]) -> bool:
        """Return True if `job`, all of whose parts these are, would make this very table."""
        names = [file.path.rpartition("-")[0] for file in self.manifest.files]
        return (
            not any(plan.counted for plan in plans)
            and [plan.name for plan in plans] == names
            and _stated(draft_manifest(job)) == _stated(self.manifest)
        )

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
