"""A job: all that decides what a lengths table will be, and the manifest that says so."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from packidx.digests import canonical_json, digest
from packidx.estimate.counter import CounterSettings, RecordCounter, ShardContext
from packidx.estimate.parts import Part, Place, SourceSums
from packidx.format import schema
from packidx.format.lengths import LengthsManifest, Source, fingerprint
from packidx.format.manifest import (
    DEFAULT,
    Encoder,
    Layout,
    Shard,
    Transform,
    decoded,
    sealed,
)
from packidx.io import storage
from packidx.processor.counts import Compared
from packidx.records.containers.base import RecordRange
from packidx.records.ledger import merge_columns
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import LIST_KEYS
from packidx.records.shard_marks import check_unchanged, range_keys
from packidx.records.shards import InputFile, ScannedShard, own_root, short_names
from packidx.software import software

_MEDIA = frozenset(keys[0] for keys in LIST_KEYS.values())  # which a source is said not to have


class JobShard(NamedTuple):
    """A shard that is counted."""

    context: ShardContext
    stated: Shard
    """As the manifest has it, but for its columns."""
    ranges: tuple[RecordRange, ...]
    keys: tuple[str | None, ...]
    """Of the ranges (`records.shard_marks.range_keys`)."""


@dataclass(frozen=True)
class EstimateJob:
    """The records that are counted, and the way."""

    shards: tuple[JobShard, ...]
    settings: CounterSettings
    counter: RecordCounter
    """Of `settings`, in this process."""
    media_root: str | None
    remote_media: tuple[str, ...] = ()
    """URLs below which records may refer to objects of stores."""
    wanted_backend: str | None = None
    """A text backend that was asked for; None takes the fastest that is exact."""
    backend: dict[str, Any] | None = field(default=None)
    """The text backend that counts, and why; None where no text is tokenized."""
    compared: Compared | None = None
    """Of the processor with the real one; None where it renders no text."""
    method: str | None = None
    """``'heuristic'`` where guesses were asked for."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return sum(shard.stated.rows for shard in self.shards)

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layout of each source, by name."""
        return {shard.context.source: shard.context.layout for shard in self.shards}

    @property
    def options(self) -> dict[str, Any]:
        """The options, as they stand in the manifest."""
        options: dict[str, Any] = {
            "processor": self.settings.processor,
            "encode": None if self.counter.encoder is None else self.counter.encoder.name,
            "labels": self.settings.labels,
            "media_root": self.media_root,
            "remote_media": list(self.remote_media),
            "seed": self.settings.seed,
        }
        files = self.counter.files
        if files is not None and files.overrides:
            options["processor_settings"] = files.overrides
        if self.settings.trust_remote_code:
            options["trust_remote_code"] = True
        if self.method is not None:
            options["method"] = self.method
        return options

    @property
    def encoder(self) -> Encoder | None:
        """Return what builds the samples that were counted; None where nobody knows."""
        fingerprint = self.counter.fingerprint()
        if self.counter.encoder is not None:
            return Encoder(fingerprint=fingerprint, name=self.counter.encoder.name)
        if fingerprint is None:
            return None
        settings, files = self.settings, self.counter.files
        assert files is not None  # whose fingerprint it is
        return Encoder(
            fingerprint=fingerprint,
            name=settings.processor,
            labels=settings.labels,
            settings=files.settings,
            overrides=files.overrides or None,
            day=next((t.day for t in (files.template, files.tool_template) if t and t.day), None),
        )

    @property
    def transform(self) -> Transform | None:
        changes = self.counter.transform
        return None if changes is None else decoded(Transform, changes.to_json())


def job_shards(
    files: Sequence[InputFile],
    scans: Sequence[ScannedShard],
    settings: CounterSettings,
    counter: RecordCounter,
    media_root: str | None,
    remote_media: tuple[str, ...],
) -> tuple[JobShard, ...]:
    """Return the shards of a job, and what the rows of each have in common."""
    names = short_names([file.path for file in files])
    processor = counter.files
    takes_media = processor is None or processor.image_settings is not None
    shards = []
    for number, (file, scan, name) in enumerate(zip(files, scans, names, strict=True)):
        stated = media_root or file.layout.media_root
        folder = own_root(file.path, file.container) if stated is None else stated
        context = ShardContext(
            number,
            name,
            file.path,
            file.source,
            MediaRoot(folder, stated is not None, remote_media),
            settings.processor is not None,
            file.container,
            file.layout,
            takes_media and _MEDIA.isdisjoint(file.layout.ignore),
        )
        keys = range_keys(scan.shard, file.layout, scan.ranges)
        shards.append(JobShard(context, scan.shard, scan.ranges, keys))
    return tuple(shards)


Recipe = dict[str, Any]
"""All that decides the rows of a range but its content and the files that it refers to, by name."""


def recipe(job: EstimateJob) -> Recipe:
    """The recipe of a job, whose text backend and comparison are decided."""
    compared = None if job.compared is None else job.compared.to_json()
    return _recipe(job.options, job.encoder, job.transform, job.backend, compared, software())


def recipe_of(manifest: LengthsManifest) -> Recipe:
    """The recipe of a table."""
    encoder = manifest.encoder
    bare = None if encoder is None else replace(encoder, compared=None)
    compared = None if encoder is None else encoder.compared
    made = manifest.transform, manifest.text_engine, compared, manifest.software
    return _recipe(manifest.options, bare, *made)


def _recipe(
    options: Mapping[str, Any],
    encoder: Encoder | None,
    transform: Transform | None,
    engine: Mapping[str, Any] | None,
    compared: Mapping[str, Any] | None,
    versions: Mapping[str, Any],
) -> Recipe:
    stated = compared or {}
    return {
        **options,
        "encoder": encoder and replace(encoder, name=None).to_json(),
        "transform": transform and transform.to_json(),
        "text_engine": (engine or {}).get("name"),
        # Kinds that came since were compared as they were then.
        "comparison": [stated.get("with"), list(stated.get("unequal", ()))],
        **versions,
    }


def difference(mine: Recipe, theirs: Recipe) -> str | None:
    """Return the first thing in which `theirs` is another recipe, in words."""
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        was, now = theirs.get(name), mine.get(name)
        if name == "processor" and mine["encoder"] == theirs["encoder"] is not None:
            continue  # another spelling of its folder
        if was != now and name in ("encoder", "transform"):
            return f"its {name} has changed, or its settings or files have"
        if was != now:
            return f"its {name.replace('_', ' ')} has changed from {was} to {now}"
    return None


class PlacedRange(NamedTuple):
    """A range of a shard, and where its rows stand in the table."""

    shard: ShardContext
    range: RecordRange
    key: str | None
    """Of its rows: digest of all that decides them; None where nobody can tell."""
    place: Place


def placed_ranges(job: EstimateJob) -> Iterator[PlacedRange]:
    """Yield the ranges of a job, of which all is decided, in order."""
    versions = [schema.FORMAT_VERSION, str(schema.LENGTHS_WITH_SPANS)]
    shared = recipe(job)
    if shared["encoder"] is not None:
        del shared["processor"]  # its fingerprint names it, however its folder is spelt
    head = digest(canonical_json([shared, job.counter.fingerprints(), versions]))
    first_id = 0
    for shard in job.shards:
        context = shard.context
        names = context.number, context.source, context.name, shard.stated.uri
        for part, content in zip(shard.ranges, shard.keys, strict=True):
            key = None
            if content is not None and job.counter.is_known:
                drawn = None if job.transform is None else first_id  # it draws by sample ids
                key = digest(canonical_json([head, content, drawn]))
            yield PlacedRange(context, part, key, Place(first_id, *names))
            first_id += part.num_records


def make_manifest(job: EstimateJob, parts: Sequence[Part]) -> LengthsManifest:
    """The manifest of a finished table."""
    totals = {name: SourceSums() for name in job.layouts}
    for part in parts:
        for name, own in part.sources.items():
            totals[name] = totals[name].plus(own)
    total, encoder = functools.reduce(SourceSums.plus, totals.values()), job.encoder
    if encoder is not None and job.compared is not None:
        encoder = replace(encoder, compared=job.compared.to_json())
    of_shards, of_sources = _columns(job, parts)
    manifest = LengthsManifest(
        fingerprint="",
        num_samples=total.num_samples,
        num_rejected=sum(total.rejected.values()),
        encoder=encoder,
        options=job.options,
        transform=job.transform,
        shards=tuple(
            replace(shard.stated, columns=None if own == of_source else own)
            for shard, own in zip(job.shards, of_shards, strict=True)
            for of_source in [of_sources.get(shard.stated.source)]
        ),
        text_engine=job.backend,
        sources=_sources(job, totals, of_sources),
        files=tuple(part.file for part in parts),
        notes=tuple(part.note for part in parts if part.note is not None),
        methods=total.methods,
        rejected=total.rejected,
        num_media=sum(part.num_media for part in parts),
        software=software(),
    )
    return sealed(replace(manifest, fingerprint=fingerprint(manifest.to_json())))


Columns = dict[str, str]


def _columns(
    job: EstimateJob, parts: Sequence[Part]
) -> tuple[list[Columns | None], dict[str, Columns]]:
    """The columns of each shard, and of each source, by name; none where the user's own encoder
    reads the records."""
    if job.counter.encoder is not None:
        return [None for _ in job.shards], {}
    of_shards: list[Columns] = [{} for _ in job.shards]
    of_sources: dict[str, Columns] = {shard.stated.source: {} for shard in job.shards}
    for part in parts:
        for rows in part.ranges:
            merge_columns(of_shards[rows.place.shard], rows.columns)
            merge_columns(of_sources[rows.place.source], rows.columns)
    return (
        [dict(sorted(own.items())) for own in of_shards],
        {name: dict(sorted(own.items())) for name, own in of_sources.items()},
    )


def _sources(
    job: EstimateJob, totals: Mapping[str, SourceSums], columns: Mapping[str, Columns]
) -> tuple[Source, ...]:
    return tuple(
        Source(
            name=name,
            media_root=job.media_root or layout.media_root,
            remote_media=tuple(job.remote_media),
            layout=None if layout == DEFAULT else layout,
            columns=columns.get(name),
            **totals[name].to_json(),
        )
        for name, layout in job.layouts.items()
    )


def refuse_changed_shards(job: EstimateJob) -> None:
    """Raise unless all shards are what they were when they were scanned.

    Raises:
        SourceError: one changed meanwhile.
    """
    storage.overlapped(lambda shard: check_unchanged(shard.context.path, shard.stated), job.shards)
