"""Counting again only what changed: rows of a table that is there stand in the next one as well.

Rows are known by what they are made of: the recipe (options, encoder, transform, software, and what
was compared), the content of a range of a shard, and the files that its records refer to. A shard
is taken for the one that was counted, without being read, where its identity is the same
(`packidx.io.identity`); one of a store by its version. Any other one is read, and known by the
digest of its content. What records refer to is looked at, too, file by file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

import packidx
from packidx.arrays import Int64s
from packidx.digests import canonical_json
from packidx.errors import FormatError
from packidx.estimate.comparison import compared_with, may_be_compared_now
from packidx.estimate.counter import ShardContext
from packidx.estimate.job import EstimateJob, shard_contexts
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout, Shard
from packidx.format.parquet import as_arrow, conform
from packidx.io import storage, urls
from packidx.io.copies import StoredFile, are_whole, local_copy
from packidx.io.storage import reading
from packidx.lengths.parts import read_media
from packidx.records.containers.base import RecordRange
from packidx.records.containers.tar import DUPLICATE, TAR
from packidx.records.media.opener import NOTHING, References
from packidx.records.media.paths import MediaRoot
from packidx.records.shard_marks import is_unchanged, ranges_of
from packidx.records.shards import InputFile, ScannedShard, short_names
from packidx.software import software

PASSING_REASONS = frozenset(  # another run may find media, or an encoder, repaired
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
    + ("encode_failed", "transform_failed", "uncountable")
)
"""Why rows are rejected that may be usable in another run."""


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


# -- the recipe ------------------------------------------------------------------------------------


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        was, now = theirs.get(name), mine.get(name)
        if was != now:
            return f"its {name.replace('_', ' ')} was {was}, and is {now}"
    return None


def recipe_difference(job: EstimateJob, manifest: LengthsManifest) -> str | None:
    """In what the table of `manifest` was made otherwise than `job` makes one, whatever the shards.

    The job's shards need not be scanned for it.
    """
    encoder, compared = manifest.encoder, None
    if encoder is not None:
        compared, encoder = encoder.compared, replace(encoder, compared=None)
    if difference := _difference(job.options, manifest.options):
        return difference
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
    backend = (manifest.text_engine or {}).get("name")
    if job.wanted_backend and not str(backend).startswith(job.wanted_backend):
        return f"its text was counted by {backend}, and {job.wanted_backend} is asked for"
    version = manifest.software.get("packidx")
    if version != packidx.__version__:  # another version may count differently
        return f"it was made by packidx {version}, and this is {packidx.__version__}"
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
    # Kinds that came since were compared as they were then.
    if any(compared.get(name) != stated.get(name) for name in ("with", "unequal")):
        return "comparing with the real processor came out otherwise"
    return None


# -- the table that is there -----------------------------------------------------------------------


def content_of(shard: Shard, layout: Layout, ranges: Sequence[RecordRange] | None) -> Hashable:
    """All of a shard that its rows depend on but where it lies: its digest, bytes and rows, how it
    is cut, and of a tar, whose media no digest is of, its marks; without what is the plan's.

    None, which is no content, of a shard that cannot be known again.
    """
    if ranges is None:
        return None
    named = replace(layout, sample_ratio=DEFAULT.sample_ratio).to_json()
    sizes = shard.fingerprint, shard.bytes, shard.rows
    cut = tuple((part.first_row, part.num_records) for part in ranges)
    marks: tuple[Any, ...] = ()
    if shard.container == TAR:
        marks = shard.mtime, shard.identity, shard.version
        if marks[1:] == (None, None):
            return None
    return shard.container, canonical_json(named), sizes, cut, marks


@dataclass(frozen=True)
class Earlier:
    """A lengths table whose rows may be taken over."""

    path: str
    manifest: LengthsManifest
    differs: str | None
    """Why no row may: it was made in another way, or of shards that cannot be compared."""
    _looked_at: dict[tuple[int, MediaRoot], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, job: EstimateJob, path: str, manifest: LengthsManifest) -> Earlier:
        """The table at `path`, as `job`, whose shards need not be scanned yet, may use it."""
        here = software()
        there = {name: manifest.software.get(name) for name in here}
        differs = recipe_difference(job, manifest) or _difference(here, there)
        if differs is None and manifest.media is None:
            differs = "it does not say which files its records refer to"
        return cls(path, manifest, differs)

    @cached_property
    def _by_uri(self) -> dict[str, Shard]:
        return {shard.uri: shard for shard in self.manifest.shards}

    @cached_property
    def first_rows(self) -> list[int]:
        """The table's row that each shard begins with, and the number of rows."""
        return list(accumulate((shard.rows for shard in self.manifest.shards), initial=0))

    @cached_property
    def names(self) -> list[str]:
        """Return what keys of records without a name of their own begin with, by shard."""
        return short_names([urls.local_path(shard.uri) for shard in self.manifest.shards])

    @cached_property
    def contents(self) -> list[Hashable]:
        """Return the content of each shard; None where there is none."""
        return [
            content_of(shard, self.layouts[shard.source], ranges_of(shard))
            for shard in self.manifest.shards
        ]

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The layout of each source, by name."""
        return {each.name: each.layout or DEFAULT for each in self.manifest.sources}

    @cached_property
    def files(self) -> list[StoredFile]:
        """The table's parts."""
        return [file.within(self.path) for file in self.manifest.files]

    @cached_property
    def _referred(self) -> dict[int, References]:
        """Return what ranges refer to, by the table's row that they begin with."""
        files = [file.within(self.path) for file in self.manifest.media or ()]
        return {
            first: names for part in storage.overlapped(read_media, files) for first, names in part
        }

    def references(self, first: int) -> References:
        """Return what the range refers to that begins with this row of the table.

        Raises:
            FormatError: the file that says so is damaged.
        """
        return self._referred.get(first, NOTHING)

    def are_unchanged(self, first: int, root: MediaRoot) -> bool:
        """Return whether what a range refers to are, from `root`, the same files."""
        key = first, root
        if key not in self._looked_at:
            try:
                self._looked_at[key] = self.references(first).are_unchanged(root)
            except FormatError:
                self._looked_at[key] = False
        return self._looked_at[key]

    def known_scan(self, file: InputFile) -> ScannedShard | None:
        """Return what a scan of `file` would find, if it is certainly the one that was counted.

        Raises:
            SourceError: it cannot be read.
        """
        stated = self._by_uri.get(file.uri)
        if self.differs is not None or stated is None:
            return None
        if file.container == TAR and DUPLICATE in self.manifest.rejected:
            return None  # which keys come again is not in the manifest
        ranges = ranges_of(stated)
        with reading(file.path):
            if ranges is None or not is_unchanged(file.path, stated):
                return None
        shard = replace(stated, source=file.source, container=file.container, columns=None)
        was = content_of(stated, self.layouts[stated.source], ranges)
        is_known = was is not None and content_of(shard, file.layout, ranges) == was
        return ScannedShard(shard, ranges) if is_known else None


def contents_of(job: EstimateJob) -> list[Hashable]:
    """Return the content of each shard, to be compared with those of an earlier table."""
    pairs = zip(job.shards, job.scans, strict=True)
    return [content_of(scan.shard, file.layout, scan.ranges) for file, scan in pairs]


def is_same(job: EstimateJob, earlier: Earlier) -> bool:
    """Return whether the table that is there is the one that `job` would make: nothing changed, and
    all that records refer to is what it was."""
    manifest = earlier.manifest
    stated = [(shard.uri, shard.source) for shard in manifest.shards]
    contents = contents_of(job)
    layouts = {shard.source: shard.layout for shard in job.shards}
    return (
        recipe_difference(job, manifest) is None
        and stated == [(shard.uri, shard.source) for shard in job.shards]
        and None not in contents
        and earlier.contents == contents
        and earlier.layouts == layouts
        and PASSING_REASONS.isdisjoint(manifest.rejected)
        and are_whole(earlier.files)
        and all(
            earlier.are_unchanged(first + part.first_row, shard.root)
            for shard, scan, first in zip(
                shard_contexts(job), job.scans, earlier.first_rows, strict=False
            )
            for part in scan.ranges
        )
    )


# -- rows that are taken over ----------------------------------------------------------------------


class Span(NamedTuple):
    """Neighbouring rows of a part of the earlier table."""

    file: StoredFile
    first: int
    num_rows: int


class OldRows(NamedTuple):
    """The rows of one range of a shard, in an earlier table."""

    spans: tuple[Span, ...]
    name: str
    """What its keys of records without a name of their own begin with."""
    place: tuple[int, int, str]
    """sample_id of the first row, number of the shard and name of its source."""
    references: References
    columns: Mapping[str, str]
    """Of the shard, and what each is used as."""


Kept = dict[tuple[int, int], OldRows]
"""Rows that are taken over, by number of the shard and first record of the range."""


def take(job: EstimateJob, earlier: Earlier) -> tuple[Kept, TakenOver]:
    """The rows of an earlier table that stand in the job's as well.

    Raises:
        OSError: a store cannot be asked.
    """
    numbers: dict[Hashable, list[int]] = defaultdict(list)
    for number, content in enumerate(earlier.contents):
        if earlier.manifest.shards[number].uri.endswith(earlier.names[number]):
            numbers[content].append(number)  # else its name depended on the working folder
    numbers.pop(None, None)
    matches = [numbers.get(content, []) for content in contents_of(job)]
    table = _OldTable(earlier, {number for match in matches for number in match})
    kept: Kept = {}
    num_shards = num_rows = first_id = 0
    counted: list[str] = []
    for shard, scan, match in zip(shard_contexts(job), job.scans, matches, strict=True):
        uri = job.shards[shard.number].uri
        match.sort(key=lambda number: earlier.manifest.shards[number].uri != uri)
        found: list[tuple[RecordRange, OldRows]] = []
        for part in scan.ranges if match else ():
            moved = earlier.manifest.shards[match[0]].uri != uri
            old = table.of(match[0], part, shard, moved)
            # A transform draws by sample ids.
            if old is not None and (job.transform is None or old.place[0] == first_id):
                found.append((part, old))
                num_rows += part.num_records
            first_id += part.num_records
        first_id += 0 if match else scan.shard.rows
        kept |= {(shard.number, part.first_row): old for part, old in found}
        num_shards += len(found) == len(scan.ranges)
        counted += [shard.name] if len(found) < len(scan.ranges) else []
    total = sum(scan.shard.rows for scan in job.scans)
    return kept, TakenOver(
        num_rows,
        num_shards,
        total - num_rows,
        len(job.shards) - num_shards,
        counted,
        damaged=list(table.damaged.values()),
    )


class _OldTable:
    """The rows of an earlier table that may be taken over.

    Args:
        wanted: the shards of which there are some.
    """

    def __init__(self, earlier: Earlier, wanted: Collection[int]) -> None:
        self._earlier = earlier
        self._starts = list(accumulate((f.rows for f in earlier.manifest.files), initial=0))
        needed = {
            part for n in wanted for part, _, _ in self._parts(*earlier.first_rows[n : n + 2])
        }
        self._needed = sorted(needed)
        said = storage.overlapped(_damage, [earlier.files[number] for number in self._needed])
        wrong = zip(self._needed, said, strict=True)
        self.damaged = {number: text for number, text in wrong if text is not None}
        """What is wrong with parts, a sentence each."""

    def of(
        self, number: int, part: RecordRange, shard: ShardContext, is_moved: bool
    ) -> OldRows | None:
        """The rows of one range of shard `number`; None where they must be counted again."""
        earlier = self._earlier
        first = earlier.first_rows[number] + part.first_row
        parts = self._parts(first, first + part.num_records)
        # What is said of rejected records names their place.
        rejected = self._rejected if is_moved else self._passing
        if any(n in self.damaged for n, _, _ in parts) or np.searchsorted(
            rejected, first
        ) < np.searchsorted(rejected, first + part.num_records):
            return None
        if not earlier.are_unchanged(first, shard.root):
            return None
        return OldRows(
            tuple(Span(earlier.files[n], start, rows) for n, start, rows in parts),
            earlier.names[number],
            (first, number, earlier.manifest.shards[number].source),
            earlier.references(first),
            earlier.manifest.columns_of(number),
        )

    def _parts(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """(number of the part, first row in it, rows) of rows ``first .. end - 1`` of the table."""
        parts = []
        number = max(0, bisect_right(self._starts, first) - 1)
        while first < end:
            until = min(end, self._starts[number + 1])
            if until > first:
                parts.append((number, first - self._starts[number], until - first))
            first, number = max(first, until), number + 1
        return parts

    @cached_property
    def _passing(self) -> Int64s:
        """Rows that were rejected for a reason that may be gone."""
        return self._rejected_for(PASSING_REASONS.intersection(self._earlier.manifest.rejected))

    @cached_property
    def _rejected(self) -> Int64s:
        return self._rejected_for(self._earlier.manifest.rejected)

    def _rejected_for(self, reasons: Collection[str]) -> Int64s:
        listed = pa.array(sorted(reasons), pa.string())
        rows = [np.zeros(0, np.int64)]
        for number in self._needed if reasons else ():
            if number not in self.damaged:
                with local_copy(self._earlier.files[number]) as copy:
                    column = pq.read_table(copy, columns=["reason"]).column(0)
                is_listed = np.asarray(pc.is_in(column, listed))
                rows.append(np.flatnonzero(is_listed) + self._starts[number])
        return np.concatenate(rows)


def _damage(file: StoredFile) -> str | None:
    try:
        with local_copy(file):
            return None
    except FormatError as error:
        return str(error).partition(":")[0]


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """All of a part, which has the content that its manifest states.

    Raises:
        FormatError: it has another one, or none.
        OSError: it cannot be read.
    """
    with local_copy(file) as copy, pq.ParquetFile(copy) as stored:
        return conform(stored.read(use_threads=False), schema.ALL_LENGTHS)


def taken_rows(old: OldRows, shard: ShardContext, first_id: int) -> pa.Table:
    """The rows of a range as a count of it would make them.

    Args:
        first_id: sample_id of the first one.

    Raises:
        FormatError: a part of the earlier table is damaged.
    """
    tables = [read_part(span.file).slice(span.first, span.num_rows) for span in old.spans]
    rows = pa.concat_tables(tables)
    if old.name == shard.name and old.place == (first_id, shard.number, shard.source):
        return rows
    num = rows.num_rows
    made, now = (
        pc.binary_join_element_wise(f"{name}#", rows.column("row").cast(pa.string()), "")
        for name in (old.name, shard.name)
    )
    columns = {
        "sample_id": as_arrow(np.arange(first_id, first_id + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.source, pa.string()), num),
        "key": pc.if_else(pc.equal(rows.column("key"), made), now, rows.column("key")),
    }
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, schema.ALL_LENGTHS.field(name), values)
    return rows
