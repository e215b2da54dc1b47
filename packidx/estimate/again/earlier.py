"""The table that is there already: whether it was made as the next one will be, and its shards.

A shard is taken for the one that was counted, without being read, where its identity is the same
(`packidx.io.identity`); one of a store by its version. Any other one is read, and known by the
digest of its content. What records refer to is looked at, too, file by file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

import packidx
from packidx.errors import FormatError
from packidx.estimate.comparison import compared_with, may_be_compared_now
from packidx.estimate.job import EstimateJob, layouts_of, shard_contexts
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import as_planned
from packidx.io import urls
from packidx.io.copies import are_whole, overlapped
from packidx.io.storage import reading
from packidx.lengths.parts import read_media
from packidx.records.containers.base import RecordRange, ShardScan
from packidx.records.containers.tar import DUPLICATE, TAR
from packidx.records.media.looked_at import NOTHING, References
from packidx.records.media.paths import MediaRoot
from packidx.records.shard_marks import has_ranges, is_marked, ranges_of, unread_marks
from packidx.records.shards import Shard, short_names
from packidx.software import software


@dataclass(frozen=True)
class Earlier:
    """A lengths table whose rows may be taken over."""

    path: str
    manifest: LengthsManifest
    differs: str | None
    """Why no row may: it was made in another way, or of shards that cannot be compared."""
    _looked_at: dict[tuple[int, int, MediaRoot], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, job: EstimateJob, path: str, manifest: LengthsManifest) -> Earlier:
        """The table at `path`, as `job`, whose shards need not be scanned yet, may use it."""
        differs = recipe_difference(job, manifest) or _other_software(manifest)
        if differs is None and manifest.media is None:
            differs = "it does not say which files its records refer to"
        return cls(path, manifest, differs)

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

    def layout(self, number: int) -> dict[str, Any]:
        """How shard `number` names things, as far as it matters to counting."""
        source = self._sources[self.manifest.shards[number].source]
        return without_ratio({} if source.layout is None else source.layout.to_json())

    @cached_property
    def _sources(self) -> dict[str, Any]:
        return {source.name: source for source in self.manifest.sources}

    @cached_property
    def _referred(self) -> dict[int, References]:
        """What ranges refer to, by the table's row that they begin with."""
        files = [file.within(self.path) for file in self.manifest.media or ()]
        return {first: names for part in overlapped(read_media, files) for first, names in part}

    def references(self, number: int, part: RecordRange) -> References:
        """What a range of shard `number` refers to.

        Raises:
            FormatError: the file that says so is damaged.
        """
        first = self.first_rows[number] + part.first_row
        return self._referred.get(first, NOTHING)

    def are_unchanged(self, number: int, part: RecordRange, root: MediaRoot) -> bool:
        """Whether what a range of shard `number` refers to are, from `root`, the same files."""
        key = number, part.first_row, root
        if key not in self._looked_at:
            try:
                self._looked_at[key] = self.references(number, part).are_unchanged(root)
            except FormatError:
                self._looked_at[key] = False
        return self._looked_at[key]

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
        with reading(shard.path):
            nbytes, marks = unread_marks(shard.path)
        if ranges is None or nbytes != stated.bytes or not is_marked(stated, marks):
            return None
        if stated.sampled is not None:
            marks["sampled"] = stated.sampled
        return ShardScan(stated.bytes, stated.fingerprint, stated.rows, ranges, marks)


def is_whole(job: EstimateJob, earlier: Earlier) -> bool:
    """Whether a table of the job's very shards is there, and all that their records refer to is
    what it was."""
    return are_whole([file.within(earlier.path) for file in earlier.manifest.files]) and all(
        earlier.are_unchanged(shard.number, part, shard.root)
        for shard, scan in zip(shard_contexts(job), job.scans, strict=True)
        for part in scan.ranges
    )


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


PASSING_REASONS = frozenset(  # another run may find media, or an encoder, repaired
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
    + ("encode_failed", "transform_failed", "uncountable")
)
"""Why rows are rejected that may be usable in another run."""


def recipe_difference(job: EstimateJob, manifest: LengthsManifest) -> str | None:
    """In what the table of `manifest` was made otherwise than `job` makes one, whatever the shards.

    The job's shards need not be scanned for it.
    """
    encoder, compared = manifest.encoder, None
    if encoder is not None:
        compared, encoder = encoder.compared, replace(encoder, compared=None)
    mine, theirs = job.options, manifest.options
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        if mine.get(name) != theirs.get(name):
            return f"its {name.replace('_', ' ')} was {theirs.get(name)}, and is {mine.get(name)}"
    if encoder != job.encoder:
        return "its encoder was another one, or had other settings or files"
    if manifest.transform != job.transform:
        return "its transform was another one"
    doubt = None if job.counter.files is None else job.counter.files.doubt
    if compared is not None and may_be_compared_now(compared, doubt):
        # What was compared, and with what, decides what is called exact.
        was, now = (by or "nothing" for by in (compared.get("with"), compared_with()))
        return f"it was compared with {was}, and may be with {now} now"
    given = job.settings.processor is not None or job.counter.encoder is not None
    if given and job.counter.fingerprint() is None:
        return "its encoder has no fingerprint to be known by"
    if job.counter.encoder is None and any(each.columns is None for each in manifest.sources):
        return "it does not say which columns were used"
    version = manifest.software.get("packidx")
    if version != packidx.__version__:  # another version may count differently
        return f"it was made by packidx {version}, and this is {packidx.__version__}"
    backend = (manifest.text_engine or {}).get("name")
    if job.wanted_backend and not str(backend).startswith(job.wanted_backend):
        return f"its text was counted by {backend}, and {job.wanted_backend} is asked for"
    return None


def decision_difference(job: EstimateJob, manifest: LengthsManifest) -> str | None:
    """In what that came out otherwise which is decided on the data: what tokenizes its text, and
    which counts are exact."""
    was, now = ((engine or {}).get("name") for engine in (manifest.text_engine, job.backend))
    if was != now:
        return f"its text was counted by {was}, and is counted by {now} now"
    encoder = manifest.encoder
    compared = {} if encoder is None else encoder.compared or {}
    stated = {} if job.compared is None else job.compared.to_json()
    for name in ("with", "unequal"):  # kinds that came since were compared as they were then
        if compared.get(name) != stated.get(name):
            return "comparing with the real processor came out otherwise"
    return None


def is_same(job: EstimateJob, manifest: LengthsManifest) -> bool:
    """Whether the table of `manifest` is the one that `job` would make, if the files that records
    refer to are the same."""
    # All that a manifest says of shards, but for what decides nothing.
    shards = tuple(
        replace(as_planned(shard), mtime=None, sampled=None, version=None)
        for shard in manifest.shards
    )
    layouts = {source.name: source.layout.to_json() for source in manifest.sources if source.layout}
    return (
        recipe_difference(job, manifest) is None
        and (shards, layouts) == (job.stated_shards, layouts_of(job))
        and PASSING_REASONS.isdisjoint(manifest.rejected)
        and all(
            has_ranges(stated, scan)
            # No digest is of the media in a tar.
            and (stated.container != TAR or is_marked(stated, scan.marks))
            for stated, scan in zip(manifest.shards, job.scans, strict=True)
        )
    )
