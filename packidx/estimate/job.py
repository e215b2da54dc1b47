"""A job: all that decides what a lengths table will be, and the manifest that says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from packidx.digests import canonical_json, digest
from packidx.estimate.counter import RecordCounter, ShardContext
from packidx.estimate.parts import Part, Sums, numbers_of, stated_sums
from packidx.format import schema
from packidx.format.lengths import LengthsManifest, Source, fingerprint
from packidx.format.manifest import (
    DEFAULT,
    Compared,
    Encoder,
    Layout,
    RecordRange,
    Shard,
    Transform,
    compared_of,
    decoded,
    sealed,
)
from packidx.io import urls
from packidx.records.containers.registry import container
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import LIST_KEYS
from packidx.records.read import merge_columns
from packidx.records.shards import InputFile, short_names
from packidx.software import software

_MEDIA = frozenset(keys[0] for keys in LIST_KEYS.values())  # which a source is said not to have


class JobShard(NamedTuple):
    """A shard that is counted."""

    context: ShardContext
    stated: Shard
    """As the manifest has it."""


@dataclass
class EstimateJob:
    """The records that are counted, and how; the last three are decided by `survey`."""

    shards: tuple[JobShard, ...]
    counter: RecordCounter
    """Of this process."""
    media_root: str | None
    remote_media: tuple[str, ...] = ()
    """URLs below which records may refer to objects of stores."""
    text_engine: Mapping[str, Any] | None = None
    """The engine that tokenizes, and why; None if no text is tokenized."""
    compared: Compared | None = None
    """Of the processor with the real one; None where it renders no text."""
    is_random: bool = False
    """True if the transform makes different records of two copies of one."""


def job_shards(
    files: Sequence[InputFile],
    scans: Sequence[Shard],
    takes_media: bool,
    media_root: str | None,
    remote_media: tuple[str, ...],
) -> tuple[JobShard, ...]:
    """Return the shards of a job, and what the rows of each have in common."""
    names = short_names([file.path for file in files])
    shards = []
    for number, (file, scan, name) in enumerate(zip(files, scans, names, strict=True)):
        stated = media_root or file.layout.media_root
        folder = (os.path.dirname(file.path) or ".") if stated is None else stated
        root = MediaRoot(folder, stated is not None, remote_media)
        has_media = takes_media and _MEDIA.isdisjoint(file.layout.ignore)
        context = ShardContext(number, name, file, root, has_media)
        shards.append(JobShard(context, scan))
    return tuple(shards)


def _recipe(manifest: LengthsManifest) -> dict[str, Any]:
    """Return by name all that decides rows, except records and media."""
    encoder, compared = manifest.encoder, compared_of(manifest.encoder)
    recipe = {
        **manifest.options,
        "encoder": encoder and replace(encoder, name=None, compared=None).to_json(),
        "transform": manifest.transform and replace(manifest.transform, is_random=False).to_json(),
        "text_engine": (manifest.text_engine or {}).get("name"),
        "comparison": compared and [compared.by, sorted(compared.computed), sorted(compared.built)],
        **manifest.software,
    }
    if encoder is not None:
        del recipe["processor"]  # its fingerprint names it, however its folder is spelt
    return recipe


def difference(mine: LengthsManifest, theirs: LengthsManifest) -> str | None:
    """Return in words what `theirs` has another recipe in."""
    now, was = _recipe(mine), _recipe(theirs)
    names = [name for name in {**now, **was} if now.get(name) != was.get(name)]
    return f"counted with another {', '.join(names).replace('_', ' ')}" if names else None


class Task(NamedTuple):
    """A range of a shard that is counted, and where its rows stand in the table."""

    shard: ShardContext
    range: RecordRange
    first_id: int
    """sample_id of its first row."""
    key: str
    """Digest of all that decides its rows, except their place in the table."""


def list_tasks(job: EstimateJob) -> Iterator[Task]:
    """Yield the tasks of a job, whose text engine and comparison are decided, in order."""
    versions = [schema.FORMAT_VERSION, str(schema.LENGTHS_WITH_SPANS)]
    recipe = _recipe(draft_manifest(job))
    head = digest(canonical_json([recipe, job.counter.fingerprints, versions]))
    first_id = 0
    for context, stated in job.shards:
        root, layout = context.root, planless(context.file.layout)
        places = [context.file.path, root.folder, *root.elsewhere]
        named = [context.name, *map(urls.absolute, places)]
        content = [stated.container, stated.fingerprint, stated.rows]
        if not container(stated.container).hashes_all:
            content += [stated.bytes, stated.version]
        shared = digest(canonical_json([head, named, layout.to_json(), content]))
        for part in stated.ranges:
            drawn = None if job.counter.transform is None else first_id  # it draws by sample ids
            key = digest(canonical_json([shared, to_builtins(part), drawn]))[:32]
            yield Task(context, part, first_id, key)
            first_id += part.num_records


def planless(layout: Layout) -> Layout:
    """Return `layout` without what is the plan's."""
    return replace(layout, sample_ratio=DEFAULT.sample_ratio)


def _encoder(counter: RecordCounter, compared: Compared | None) -> Encoder | None:
    """Return what builds the samples that are counted; None if it is not known."""
    files, settings = counter.files, counter.settings
    if counter.encoder is not None:
        return Encoder(fingerprint=counter.fingerprint(), name=counter.encoder.name)
    if files is None:
        return None
    return Encoder(
        fingerprint=counter.fingerprint(),
        name=settings.processor,
        labels=settings.labels,
        settings=files.settings,
        overrides=files.overrides or None,
        compared=compared,
        day=next((t.day for t in (files.template, files.tool_template) if t and t.day), None),
    )


def make_manifest(job: EstimateJob, parts: Sequence[Part]) -> LengthsManifest:
    """The manifest of a finished table."""
    manifest = draft_manifest(job, parts)
    return sealed(replace(manifest, fingerprint=fingerprint(manifest.to_json())))


def draft_manifest(job: EstimateJob, parts: Sequence[Part] = ()) -> LengthsManifest:
    """Return the manifest of a table with these parts, without digests."""
    layouts = {shard.stated.source: shard.context.file.layout for shard in job.shards}
    totals = {name: Sums() for name in layouts}
    columns = {name: dict[str, str]() for name in layouts}
    total, rare = Sums(), dict[str, str | None]()
    for part in parts:
        for name, own in part.sources.items():
            totals[name].update(own)
            total.update(own)
    sources = (shard.stated.source for shard in job.shards for _ in shard.stated.ranges)
    for name, task in zip(sources, (task for part in parts for task in part.tasks), strict=False):
        merge_columns(columns[name], task.columns)
        rare |= task.kinds
    compared, transform = job.compared, job.counter.transform
    if compared is not None:
        rare, built = dict(sorted(rare.items())), total["num_built", ""]
        compared = replace(compared, rare=rare, num_built=built)
    rejected, settings = numbers_of(total, "rejected"), job.counter.settings
    encode, files = job.counter.encoder, job.counter.files
    options: dict[str, Any] = {
        "processor": settings.processor,
        "encode": None if encode is None else encode.name,
        "labels": settings.labels,
        "media_root": job.media_root,
        "remote_media": list(job.remote_media),
        "seed": settings.seed,
    }
    if files is not None and files.overrides:
        options["processor_settings"] = files.overrides
    if settings.trust_remote_code:
        options["trust_remote_code"] = True
    return LengthsManifest(
        fingerprint="",
        num_samples=total["num_samples", ""],
        num_rejected=sum(rejected.values()),
        encoder=_encoder(job.counter, compared),
        options=options,
        transform=None
        if transform is None
        else decoded(Transform, {**transform.to_json(), "is_random": job.is_random}),
        shards=tuple(shard.stated for shard in job.shards),
        text_engine=job.text_engine,
        sources=tuple(
            Source(
                name=name,
                media_root=job.media_root or layout.media_root,
                remote_media=tuple(job.remote_media),
                layout=None if layout == DEFAULT else layout,
                columns=None if job.counter.encoder else dict(sorted(columns[name].items())),
                **stated_sums(totals[name]),
            )
            for name, layout in layouts.items()
        ),
        files=tuple(part.file for part in parts),
        keys=tuple(tuple(task.key for task in part.tasks) for part in parts),
        methods=numbers_of(total, "method"),
        rejected=rejected,
        num_media=total["num_media", ""],
        software=software(),
    )
