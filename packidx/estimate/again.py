"""The table that is there already: whether it was made as the next one will be, and its shards.

A shard is taken for the one that was counted, without being read, where its identity is the same
(`packidx.io.identity`); one of a store by its version. Any other one is read, and known by the
digest of its content. What records refer to is looked at, too, file by file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import packidx
from packidx.arrays import Int64s
from packidx.errors import FormatError
from packidx.estimate.comparison import compared_with, may_be_compared_now
from packidx.estimate.counter import ShardContext, name_in_shard, raw_records
from packidx.estimate.job import EstimateJob, layouts_of, shard_contexts
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import as_planned
from packidx.format.parquet import as_arrow, conform
from packidx.io import urls
from packidx.io.copies import StoredFile, are_whole, local_copy, overlapped
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


class OldRows(NamedTuple):
    """The rows of one range of a shard, in an earlier table."""

    spans: tuple[Span, ...]
    old_name: str | None
    """What its keys of records without a name of their own began with, where that is another name
    now."""
    place: tuple[int, int, str]
    """sample_id of the first row, number of the shard and name of its source, as they stand in the
    earlier table."""
    references: References
    columns: Mapping[str, str]
    """Of the shard, and what each is used as."""


Kept = dict[tuple[int, int], OldRows]
"""Rows that are taken over, by number of the shard and first record of the range."""


@dataclass(frozen=True)
class Match:
    """A shard of the job, and the one of the earlier table that it is."""

    number: int
    """Of the earlier one."""
    is_moved: bool
    """It has another URI."""


def matches(job: EstimateJob, earlier: Earlier) -> list[Match | None]:
    """For each shard of the job the one that it was; None of one that is new or another."""
    by_content: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, stated in enumerate(earlier.manifest.shards):
        content = stated.fingerprint, stated.bytes, stated.rows, stated.container
        by_content[content].append(number)
    found = []
    for shard, scan in zip(job.shards, job.scans, strict=True):
        here = scan.sha256, scan.nbytes, scan.num_records, shard.container
        same = [n for n in by_content[here] if _is_same(earlier, n, shard, scan)]
        same.sort(key=lambda n: earlier.manifest.shards[n].uri != shard.uri)
        moved = [earlier.manifest.shards[number].uri != shard.uri for number in same]
        found.append(Match(same[0], moved[0]) if same else None)
    return found


def _is_same(earlier: Earlier, number: int, shard: Shard, scan: ShardScan) -> bool:
    stated = earlier.manifest.shards[number]
    if shard.container == TAR and not is_marked(stated, scan.marks):
        return False  # no digest is of the media in it
    if not stated.uri.endswith(earlier.names[number]):
        return False  # what it was called depended on the working folder
    return has_layout(earlier, number, shard) and has_ranges(stated, scan)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What is taken over, and why the rest of the shards that are the same is not."""

    rows: Kept
    reasons: dict[int, str]
    """By number of the shard."""
    damage: list[str]
    """Of parts of the earlier table."""


def kept_rows(job: EstimateJob, earlier: Earlier, found: Sequence[Match | None]) -> KeptRows:
    """The rows that are taken over.

    Raises:
        OSError: a store cannot be asked.
    """
    table = OldTable(earlier, [match for match in found if match is not None])
    rows: Kept = {}
    reasons: dict[int, str] = {}
    first_id = 0
    for context, scan, match in zip(shard_contexts(job), job.scans, found, strict=True):
        if match is not None:
            if job.transform is not None and earlier.first_rows[match.number] != first_id:
                reasons[context.number] = (
                    "its sample ids are others, and the transform draws by them"
                )
            else:
                for part in scan.ranges:
                    old = table.of(match, part, context)
                    if isinstance(old, str):
                        reasons[context.number] = old
                    else:
                        rows[context.number, part.first_row] = old
        first_id += scan.num_records
    return KeptRows(rows, reasons, table.damage)


class OldTable:
    """The rows of an earlier table that may be taken over.

    Args:
        wanted: the shards of which there are some.
    """

    def __init__(self, earlier: Earlier, wanted: Collection[Match]) -> None:
        self._earlier = earlier
        self._files = [file.within(earlier.path) for file in earlier.manifest.files]
        self._starts = list(accumulate((f.rows for f in earlier.manifest.files), initial=0))
        needed = {
            number
            for match in wanted
            for number, _, _ in self._parts(*earlier.first_rows[match.number : match.number + 2])
        }
        self._needed = sorted(needed)
        said = overlapped(_damage, [self._files[number] for number in self._needed])
        wrong = zip(self._needed, said, strict=True)
        self._damaged = {number: text for number, text in wrong if text is not None}

    @property
    def damage(self) -> list[str]:
        """What is wrong with parts, a sentence each."""
        return list(self._damaged.values())

    def of(self, match: Match, part: RecordRange, shard: ShardContext) -> OldRows | str:
        """The rows of one range, or why they must be counted again."""
        first = self._earlier.first_rows[match.number] + part.first_row
        end = first + part.num_records
        parts = self._parts(first, end)
        if any(number in self._damaged for number, _, _ in parts):
            return "its part of the table was damaged"
        if _any_within(self._passing, first, end):
            return "records that were rejected may be usable now"
        if match.is_moved and _any_within(self._rejected, first, end):
            return "what is said of rejected records names its place"
        if not self._earlier.are_unchanged(match.number, part, shard.root):
            return "files that its records refer to are others now"
        name = self._earlier.names[match.number]
        spans = tuple(Span(self._files[number], start, rows) for number, start, rows in parts)
        place = first, match.number, self._earlier.manifest.shards[match.number].source
        columns = self._earlier.manifest.columns_of(match.number)
        references = self._earlier.references(match.number, part)
        return OldRows(spans, None if name == shard.name else name, place, references, columns)

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
        reasons = PASSING_REASONS.intersection(self._earlier.manifest.rejected)
        return self._rejected_for(reasons) if reasons else np.zeros(0, np.int64)

    @cached_property
    def _rejected(self) -> Int64s:
        return self._rejected_for(self._earlier.manifest.rejected)

    def _rejected_for(self, reasons: Collection[str]) -> Int64s:
        listed = pa.array(sorted(reasons), pa.string())
        return self._where("reason", lambda column: pc.is_in(column, listed))

    def _where(self, name: str, holds: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> Int64s:
        rows = [np.zeros(0, np.int64)]
        for number in self._needed:
            if number not in self._damaged:
                with local_copy(self._files[number]) as copy:
                    column = pq.read_table(copy, columns=[name]).column(0)
                rows.append(np.flatnonzero(np.asarray(holds(column))) + self._starts[number])
        return np.concatenate(rows)


def _damage(file: StoredFile) -> str | None:
    try:
        with local_copy(file):
            return None
    except FormatError as error:
        return str(error).partition(":")[0]


def _any_within(rows: Int64s, first: int, end: int) -> bool:
    """Whether some of ascending `rows` is one of ``first .. end - 1``."""
    return bool(np.searchsorted(rows, first) < np.searchsorted(rows, end))


class Span(NamedTuple):
    """Neighbouring rows of a part of the earlier table."""

    file: StoredFile
    first: int
    num_rows: int


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """All of a part, which has the content that its manifest states.

    Raises:
        FormatError: it has another one, or none.
        OSError: it cannot be read.
    """
    with local_copy(file) as copy, pq.ParquetFile(copy) as stored:
        return conform(stored.read(use_threads=False), schema.ALL_LENGTHS)


def taken_rows(
    old: OldRows, shard: ShardContext, record_range: RecordRange, first_id: int
) -> pa.Table:
    """The rows of a range as a count of it would make them.

    Args:
        first_id: sample_id of the first one.

    Raises:
        FormatError: a part of the earlier table is damaged.
        SourceError: the shard cannot be read.
    """
    tables = [read_part(span.file).slice(span.first, span.num_rows) for span in old.spans]
    rows = pa.concat_tables(tables)
    if old.old_name is None and old.place == (first_id, shard.number, shard.source):
        return rows
    num = rows.num_rows
    columns = {
        "sample_id": as_arrow(np.arange(first_id, first_id + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.source, pa.string()), num),
    }
    if old.old_name is not None:
        columns["key"] = _renamed(rows.column("key"), old.old_name, shard, record_range)
    for name, values in columns.items():
        rows = rows.set_column(
            rows.schema.get_field_index(name), schema.ALL_LENGTHS.field(name), values
        )
    return rows


def _renamed(
    keys: pa.ChunkedArray, old_name: str, shard: ShardContext, record_range: RecordRange
) -> pa.ChunkedArray | pa.Array:
    """Keys of records without a name of their own, which begin with the shard's.

    A record may be called so itself: then the records are asked.
    """
    if not pc.any(pc.starts_with(keys, f"{old_name}#")).as_py():
        return keys
    own = [(raw.row, name_in_shard(raw)) for raw in raw_records(shard, record_range)]
    names = [f"{shard.name}#{row}" if name is None else name for row, name in own]
    return pa.array(names, pa.string())


@dataclass(frozen=True, slots=True)
class ShardChange:
    """What became of one shard since the earlier table was counted."""

    shard: str
    """Its URI."""
    name: str
    """Its file name, or the shortest path suffix that tells it from others."""
    change: str
    """``new``, ``grew``, ``shrank``, ``rewritten``, ``moved``, ``copied`` or ``vanished``; ``same``
    where its content was counted again for another reason."""
    detail: str
    """In words."""
    counted: bool
    """Whether it, or a part of it, was counted."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """How much of a table is an earlier one's, and why the rest is not."""

    num_samples: int = 0
    """Rows that were taken over."""
    num_shards: int = 0
    """Shards all of whose rows were."""
    num_counted: int = 0
    """Rows that were counted."""
    num_counted_shards: int = 0
    changes: list[ShardChange] = field(default_factory=list)
    """Shards that are not what they were, and where they were."""
    reason: str | None = None
    """Why nothing was taken over at all."""
    damaged: list[str] = field(default_factory=list)
    """Parts of the earlier table that were of no use."""


def all_taken_over(job: EstimateJob, earlier: Earlier) -> TakenOver:
    """Of a table that is left as it is."""
    return TakenOver(earlier.manifest.num_samples, len(job.shards))


def nothing_taken_over(job: EstimateJob, reason: str) -> TakenOver:
    """Of a table that is counted as a whole."""
    rows = sum(scan.num_records for scan in job.scans)
    return TakenOver(num_counted=rows, num_counted_shards=len(job.shards), reason=reason)


def taken_over(
    job: EstimateJob, earlier: Earlier, matches: Sequence[Match | None], kept: KeptRows
) -> TakenOver:
    """Of a table that is made of both."""
    names = short_names([shard.path for shard in job.shards])
    used = {match.number for match in matches if match is not None}
    here = {shard.uri for shard in job.shards}
    changes = []
    num_samples = num_shards = num_rows = 0
    for number, match in enumerate(matches):
        scan = job.scans[number]
        starts = [part.first_row for part in scan.ranges]
        rows = [part.num_records for part in scan.ranges if (number, part.first_row) in kept.rows]
        num_samples, num_rows = num_samples + sum(rows), num_rows + scan.num_records
        counted = len(rows) < len(starts)
        num_shards += not counted
        change, detail = _change(job, earlier, number, match, here)
        if counted and number in kept.reasons:
            detail = ", ".join(filter(None, (detail, kept.reasons[number])))
        if change != "same" or counted:
            uri = job.shards[number].uri
            changes.append(ShardChange(uri, names[number], change, detail, counted))
    for number, shard in enumerate(earlier.manifest.shards):
        if shard.uri not in here and number not in used:
            name = earlier.names[number]
            changes.append(ShardChange(shard.uri, name, "vanished", "vanished", False))
    return TakenOver(
        num_samples,
        num_shards,
        num_rows - num_samples,
        len(job.shards) - num_shards,
        changes,
        damaged=kept.damage,
    )


def _change(
    job: EstimateJob, earlier: Earlier, number: int, match: Match | None, here: set[str]
) -> tuple[str, str]:
    """What became of a shard of the job, and the same in words."""
    shard, scan = job.shards[number], job.scans[number]
    if match is not None:
        was = earlier.manifest.shards[match.number].uri
        if not match.is_moved:
            return "same", ""
        return ("copied", f"as {was}") if was in here else ("moved", f"was {was}")
    before = earlier.numbers.get(shard.uri)
    if before is None:
        return "new", "new"
    stated = earlier.manifest.shards[before]
    difference = scan.nbytes - stated.bytes
    if difference > 0:
        return "grew", f"grew by {_size(difference)}"
    if difference < 0:
        return "shrank", f"shrank by {_size(-difference)}"
    if scan.sha256 != stated.fingerprint:
        return "rewritten", "has other content of the same size"
    return "rewritten", "was written anew, or is read otherwise"


def _size(nbytes: int) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 1000**power:
            return f"{nbytes / 1000**power:.1f} {unit}"
    return f"{nbytes} byte" + ("" if nbytes == 1 else "s")
