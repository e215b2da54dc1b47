"""The table that is there already: whether it was made as the next one will be, and its shards.

A shard is taken for the one that was counted, without being read, where its place, size, time of
change and sampled blocks are the same and nothing touched it since the table was written; one of a
store by its version. Any other one is read, and known by the digest of its content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from packidx.estimate.again.recipe import is_marked, recipe_difference
from packidx.estimate.job import EstimateJob
from packidx.format import manifest as format_manifest
from packidx.format.lengths import LengthsManifest
from packidx.io import urls
from packidx.io.storage import reading
from packidx.lengths.existing import KIND
from packidx.records.containers.base import ShardScan
from packidx.records.containers.blocks import file_version
from packidx.records.containers.tar.container import TAR
from packidx.records.containers.tar.samples import DUPLICATE
from packidx.records.shard_marks import marks_of
from packidx.records.shard_ranges import ranges_of
from packidx.records.shards import Shard, own_root, short_names
from packidx.software import software

_UNSURE = 2 * 10**9  # nanoseconds: some file systems tell two times apart by no less


@dataclass(frozen=True)
class Earlier:
    """A lengths table whose rows may be taken over."""

    path: str
    manifest: LengthsManifest
    differs: str | None
    """Why no row may: it was made in another way, or of shards that cannot be compared."""

    @classmethod
    def of(cls, job: EstimateJob, path: str, manifest: LengthsManifest) -> Earlier:
        """The table at `path`, as `job`, whose shards need not be scanned yet, may use it."""
        return cls(path, manifest, recipe_difference(job, manifest) or _other_software(manifest))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each shard by its URI."""
        return {shard.uri: number for number, shard in enumerate(self.manifest.shards)}

    @cached_property
    def first_rows(self) -> list[int]:
        """The table's row that each shard begins with, and the number of rows."""
        return list(accumulate((shard.rows for shard in self.manifest.shards), initial=0))

    @cached_property
    def names(self) -> list[str]:
        """What keys of records without a name of their own begin with, by shard."""
        return short_names([urls.local_path(shard.uri) for shard in self.manifest.shards])

    @cached_property
    def _written(self) -> int | None:
        """When the table was written, in nanoseconds; None of a table in a store, whose clock is
        another one."""
        if urls.is_url(self.path):
            return None
        return os.stat(urls.join(self.path, KIND.manifest)).st_mtime_ns

    def layout(self, number: int) -> dict[str, Any]:
        """How shard `number` names things, as far as it matters to counting."""
        source = self._sources[self.manifest.shards[number].source]
        return without_ratio({} if source.layout is None else source.layout.to_json())

    @cached_property
    def _sources(self) -> dict[str, Any]:
        return {source.name: source for source in self.manifest.sources}

    def is_rooted(self, number: int) -> bool:
        """Whether the media of shard `number` do not depend on where it lies."""
        stated = self.manifest.options.get("media_root") or self.layout(number).get("media_root")
        return bool(stated) or self.manifest.shards[number].container == TAR

    def folder(self, number: int) -> str:
        """The folder of shard `number`, which relative references start from."""
        shard = self.manifest.shards[number]
        return own_root(urls.absolute(urls.local_path(shard.uri)), shard.container)

    def known_scan(self, shard: Shard) -> ShardScan | None:
        """What a scan of `shard` would find, if it is certainly the one that was counted.

        Raises:
            SourceError: it cannot be read.
        """
        number = self.numbers.get(shard.uri)
        if self.differs is not None or number is None:
            return None
        stated = self.manifest.shards[number]
        if shard.container != stated.container or not has_layout(self, number, shard):
            return None
        if shard.container == TAR and DUPLICATE in self.manifest.rejected:
            return None  # which keys come again is not in the manifest
        ranges = ranges_of(stated)
        marks = marks_of(shard.path)
        if ranges is None or not is_marked(stated, marks) or not self._is_settled(shard, stated):
            return None
        return ShardScan(stated.bytes, stated.fingerprint, stated.rows, ranges, marks)

    def _is_settled(self, shard: Shard, stated: format_manifest.Shard) -> bool:
        """Whether a shard has its size, and was not touched since the table was written.

        A time of change can be set back, as copies do; this one (ctime) nobody can set.
        """
        if file_version(shard.path)[0] != stated.bytes:
            return False
        if urls.is_url(shard.path):
            return True
        with reading(shard.path):
            touched = os.stat(shard.path).st_ctime_ns
        return self._written is not None and touched < self._written - _UNSURE


def has_layout(earlier: Earlier, number: int, shard: Shard) -> bool:
    """Whether `shard` names things as shard `number` of a table did."""
    return earlier.layout(number) == without_ratio(shard.layout.to_json())


def without_ratio(layout: Mapping[str, Any]) -> dict[str, Any]:
    """A layout without what is the plan's."""
    return {name: value for name, value in layout.items() if name != "sample_ratio"}


def _other_software(manifest: LengthsManifest) -> str | None:
    here = software()
    for name, version in here.items():
        if manifest.software.get(name) != version:
            return f"it was made with {name} {manifest.software.get(name)}, and this is {version}"
    return None
