"""Counting again only what changed: rows of a table that is there stand in the next one as well.

Rows are known by what they are made of: the recipe (`packidx.estimate.job.recipe`), the content of
a range of a shard (`packidx.records.shard_marks.range_keys`), and the files that its records refer
to. One lookup of keys says which there are. A shard is taken for the one that was counted, without
being read, where its identity is the same (`packidx.io.identity`); one of a store by its version.
What records refer to is looked at, too, file by file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from packidx.errors import FormatError
from packidx.estimate.comparison import may_be_compared_now
from packidx.estimate.counter import ShardContext
from packidx.estimate.job import (
    DECIDED,
    EstimateJob,
    JobShard,
    Recipe,
    difference,
    recipe,
    recipe_of,
)
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Layout, Shard
from packidx.format.parquet import as_arrow, conform
from packidx.io import storage, urls
from packidx.io.copies import StoredFile, are_whole, local_copy
from packidx.io.storage import reading
from packidx.lengths.parts import read_media
from packidx.records.containers.tar import DUPLICATE, TAR
from packidx.records.media.opener import NOTHING, References
from packidx.records.media.paths import MediaRoot
from packidx.records.shard_marks import is_unchanged, range_keys, ranges_of
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


class OldRows(NamedTuple):
    """The rows of one range of a shard, in a part of an earlier table."""

    file: StoredFile
    first: int
    """Row of the part that they begin with."""
    num_rows: int
    name: str
    """What its keys of records without a name of their own begin with."""
    place: tuple[int, int, str]
    """sample_id of the first row, number of the shard and name of its source."""
    references: References
    columns: Mapping[str, str]
    """Of the range's records, and what each is used as."""


Kept = dict[tuple[int, int], OldRows]
"""Rows that are taken over, by number of the shard and first record of the range."""


class _Place(NamedTuple):
    """A range of an earlier table."""

    shard: int
    first: int
    """The table's row that it begins with."""
    num_rows: int
    columns: Mapping[str, str]
    """Of its records, and what each is used as."""


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
    def _files(self) -> list[StoredFile]:
        return [file.within(self.path) for file in self.manifest.files]

    @cached_property
    def _starts(self) -> list[int]:
        """The table's row that each part begins with, and the number of rows."""
        return list(accumulate((file.rows for file in self.manifest.files), initial=0))

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {each.name: each.layout or DEFAULT for each in self.manifest.sources}

    @cached_property
    def _keys(self) -> list[tuple[str | None, ...]]:
        """The keys of each shard's ranges; one None where a shard does not say its ranges."""
        return [
            (None,) if ranges is None else range_keys(shard, self._layouts[shard.source], ranges)
            for shard in self.manifest.shards
            for ranges in [ranges_of(shard)]
        ]

    @cached_property
    def _places(self) -> dict[str, list[_Place]]:
        """Where the rows of each key are."""
        places: dict[str, list[_Place]] = defaultdict(list)
        for number, shard in enumerate(self.manifest.shards):
            keys, first = self._keys[number], self._first_rows[number]
            # Else what its records are called depended on the working folder.
            is_named = shard.uri.endswith(self._names[number])
            columns = self.manifest.columns_of(number)
            of_ranges = shard.range_columns or [columns] * len(keys)
            for part, key, own in zip(ranges_of(shard) or (), keys, of_ranges, strict=False):
                if key is not None and is_named:
                    place = _Place(number, first + part.first_row, part.num_records, own)
                    places[key].append(place)
        return places

    @cached_property
    def _first_rows(self) -> list[int]:
        """The table's row that each shard begins with, and the number of rows."""
        return list(accumulate((shard.rows for shard in self.manifest.shards), initial=0))

    @cached_property
    def _names(self) -> list[str]:
        """What keys of records without a name of their own begin with, by shard."""
        return short_names([urls.local_path(shard.uri) for shard in self.manifest.shards])

    @cached_property
    def _referred(self) -> dict[int, References]:
        """What ranges refer to, by the table's row that they begin with.

        Raises:
            FormatError: a file that says so is damaged.
        """
        files = [file.within(self.path) for file in self.manifest.media or ()]
        return {
            first: names for part in storage.overlapped(read_media, files) for first, names in part
        }

    def difference(self, job: EstimateJob, given: Recipe | None = None) -> str | None:
        """Return why no row may stand in the table of `job`: it was made in another way, or does
        not say how.

        Args:
            given: the recipe, where it is not all that the job's is.
        """
        is_given = job.settings.processor is not None or job.counter.encoder is not None
        if is_given and job.counter.fingerprint() is None:
            return "its encoder has no fingerprint to be known by"
        if reason := difference(given or recipe(job), recipe_of(self.manifest)):
            return reason
        if self.manifest.media is None:
            return "it does not say which files its records refer to"
        if job.counter.encoder is None and None in [s.columns for s in self.manifest.sources]:
            return "it does not say which columns were used"
        return None

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
        with reading(file.path):
            if ranges is None or not is_unchanged(file.path, shard):
                return None
        now = {"source": file.source, "container": file.container}
        found = replace(shard, **now, columns=None, range_columns=None)
        keys = range_keys(shard, layout, ranges)
        is_read_alike = None not in keys and keys == range_keys(found, file.layout, ranges)
        return ScannedShard(found, ranges) if is_read_alike else None

    @cached_property
    def _by_uri(self) -> dict[str, Shard]:
        return {shard.uri: shard for shard in self.manifest.shards}

    def is_table_of(self, job: EstimateJob) -> bool:
        """Return whether it is the table that `job`, of which nothing is decided, would make:
        nothing changed, and all that records refer to is what it was."""
        if not self._is_decided_alike(job):
            return False
        keys = [shard.keys for shard in job.shards]
        stated = [_stated(shard.stated) for shard in job.shards]
        return (
            self._keys == keys
            and not any(None in of_shard for of_shard in keys)
            and [*map(_stated, self.manifest.shards)] == stated
            and self._layouts == job.layouts
            and PASSING_REASONS.isdisjoint(self.manifest.rejected)
            and are_whole(self._files)
            and all(
                self._are_unchanged(first + part.first_row, shard.context.root)
                for shard, first in zip(job.shards, self._first_rows, strict=False)
                for part in shard.ranges
            )
        )

    def _is_decided_alike(self, job: EstimateJob) -> bool:
        """Return whether the table is made as `job` makes one, and what is decided on the data
        cannot come out otherwise now."""
        compared = None if self.manifest.encoder is None else self.manifest.encoder.compared
        doubt = None if job.counter.files is None else job.counter.files.doubt
        if compared is not None and may_be_compared_now(compared, doubt):
            return False
        theirs = recipe_of(self.manifest)
        if not str(theirs["text_engine"]).startswith(job.wanted_backend or ""):
            return False
        decided = {name: theirs[name] for name in DECIDED}
        return self.difference(job, recipe(job) | decided) is None

    def _are_unchanged(self, first: int, root: MediaRoot) -> bool:
        """Return whether what the range refers to that begins with a row of the table is, from
        `root`, the same files."""
        try:
            return self._referred.get(first, NOTHING).are_unchanged(root)
        except FormatError:
            return False

    def take(self, job: EstimateJob) -> tuple[Kept, TakenOver]:
        """Return the rows that stand in the table of `job` as well, whose recipe is the same.

        Raises:
            OSError: a store cannot be asked.
        """
        wanted: dict[tuple[int, int], _Place] = {}
        first_id = 0
        for shard in job.shards:
            for part, key in zip(shard.ranges, shard.keys, strict=True):
                place = self._place(key, shard.stated.uri)
                # A transform draws by sample ids.
                if place is not None and (job.transform is None or place.first == first_id):
                    wanted[shard.context.number, part.first_row] = place
                first_id += part.num_records
        damaged = self._damaged({self._part_of(place) for place in wanted.values()})
        kept = {
            at: self._rows(place)
            for at, place in wanted.items()
            if self._part_of(place) not in damaged and self._is_usable(place, job.shards[at[0]])
        }
        return kept, _told(job, kept, list(damaged.values()))

    def _place(self, key: str | None, uri: str) -> _Place | None:
        """The place of a key: in the shard of this name, if it is there."""
        places = [] if key is None else self._places.get(key, [])
        same = [place for place in places if self.manifest.shards[place.shard].uri == uri]
        return next(iter(same or places), None)

    def _part_of(self, place: _Place) -> int:
        """Number of the part that holds a range."""
        return bisect_right(self._starts, place.first) - 1

    def _damaged(self, parts: set[int]) -> dict[int, str]:
        """What is wrong with parts, a sentence each."""
        numbers = sorted(parts)
        said = storage.overlapped(_damage, [self._files[number] for number in numbers])
        return {n: text for n, text in zip(numbers, said, strict=True) if text is not None}

    def _is_usable(self, place: _Place, shard: JobShard) -> bool:
        """Return whether the rows of a range are as a count of `shard` would make them now."""
        is_moved = self.manifest.shards[place.shard].uri != shard.stated.uri
        # What is said of rejected records names their place.
        reasons = {*self.manifest.rejected} if is_moved else PASSING_REASONS
        if not reasons.isdisjoint(self.manifest.rejected):
            rows = self._rows(place)
            column = read_part(rows.file).column("reason").slice(rows.first, rows.num_rows)
            if not reasons.isdisjoint(pc.unique(column).to_pylist()):
                return False
        return self._are_unchanged(place.first, shard.context.root)

    def _rows(self, place: _Place) -> OldRows:
        part = self._part_of(place)
        return OldRows(
            self._files[part],
            place.first - self._starts[part],
            place.num_rows,
            self._names[place.shard],
            (place.first, place.shard, self.manifest.shards[place.shard].source),
            self._referred.get(place.first, NOTHING),
            place.columns,
        )


def _stated(shard: Shard) -> tuple[object, ...]:
    """What a table's fingerprint has of a shard, and where it is."""
    return shard.uri, shard.source, shard.container, shard.fingerprint, shard.bytes, shard.rows


def _told(job: EstimateJob, kept: Kept, damaged: Sequence[str]) -> TakenOver:
    """What is told of the rows that are taken over."""
    counted: list[str] = []
    num_shards = 0
    for shard in job.shards:
        context = shard.context
        is_kept = all((context.number, part.first_row) in kept for part in shard.ranges)
        num_shards += is_kept
        counted += [] if is_kept else [context.name]
    num_rows = sum(old.num_rows for old in kept.values())
    return TakenOver(
        num_samples=num_rows,
        num_shards=num_shards,
        num_counted=job.num_rows - num_rows,
        num_counted_shards=len(job.shards) - num_shards,
        counted=counted,
        damaged=list(damaged),
    )


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
    rows = read_part(old.file).slice(old.first, old.num_rows)
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
