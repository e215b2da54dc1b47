"""A job: all that decides what a lengths table will be, and the manifest that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from packidx.estimate.counter import JobShard, RecordCounter
from packidx.estimate.parts import Part, Sums, numbers_of, stated_sums
from packidx.format.lengths import LengthsManifest, Source, fingerprint_table
from packidx.format.manifest import (
    DEFAULT,
    Compared,
    Encoder,
    Layout,
    Transform,
    compared_of,
    decode_json,
    seal_manifest,
)
from packidx.records.read import merge_columns
from packidx.software import list_versions


@dataclass
class EstimateJob:
    """The records that are counted, and how; the last three are decided by `survey_data`."""

    shards: tuple[JobShard, ...]
    counter: RecordCounter
    """The counter of this process."""
    media_root: str | None
    remote_media: tuple[str, ...] = ()
    """URLs below which records may refer to objects of stores."""
    text_engine: Mapping[str, Any] | None = None
    """The engine that tokenizes, and why; None if no text is tokenized."""
    compared: Compared | None = None
    """The comparison of the processor with the real one; None if it renders no text."""
    is_random: bool = False
    """True if the transform makes different records of two copies of one."""


def table_recipe(manifest: LengthsManifest) -> dict[str, Any]:
    """Return by name all that decides rows, except records and media."""
    encoder, compared = manifest.encoder, compared_of(manifest.encoder)
    named = {
        **manifest.options,
        "encoder": encoder and replace(encoder, name=None, compared=None).to_json(),
        "transform": manifest.transform and replace(manifest.transform, is_random=False).to_json(),
        "text_engine": (manifest.text_engine or {}).get("name"),
        "comparison": compared and [compared.by, sorted(compared.computed), sorted(compared.built)],
        **manifest.software,
    }
    if encoder is not None:
        del named["processor"]  # its fingerprint names it, however its folder is spelt
    return named


def table_spelling(manifest: LengthsManifest) -> list[Any]:
    """Return what a manifest says of its recipe and shards besides what decides rows."""
    encoder, shards = manifest.encoder, [shard.uri for shard in manifest.shards]
    places = [(each.media_root, each.remote_media, each.layout) for each in manifest.sources]
    return [manifest.options, encoder and encoder.name, manifest.text_engine, shards, places]


def without_plan_options(layout: Layout) -> Layout:
    """Return `layout` without what is the plan's."""
    return replace(layout, sample_ratio=DEFAULT.sample_ratio)


def _describe_encoder(counter: RecordCounter, compared: Compared | None) -> Encoder | None:
    """Return what builds the samples that are counted; None if it is not known."""
    files, settings, own = counter.files, counter.settings, counter.fingerprints[0]
    if counter.encoder is not None:
        return Encoder(fingerprint=own, name=counter.encoder.name)
    if files is None:
        return None
    return Encoder(
        fingerprint=own,
        name=settings.processor,
        labels=settings.labels,
        settings=files.settings,
        overrides=files.overrides or None,
        compared=compared,
        day=next((t.day for t in (files.template, files.tool_template) if t and t.day), None),
    )


def make_manifest(job: EstimateJob, parts: Sequence[Part] = ()) -> LengthsManifest:
    """Return the manifest of a table with these parts; without any, what is known before."""
    layouts = {shard.file.source: shard.file.layout for shard in job.shards}
    totals = {name: Sums() for name in layouts}
    columns = {name: dict[str, str]() for name in layouts}
    total, rare = Sums(), dict[str, str | None]()
    for part in parts:
        for name, own in part.sources.items():
            totals[name].update(own)
            total.update(own)
    sources = (shard.file.source for shard in job.shards for _ in shard.stated.ranges)
    for name, task in zip(sources, (task for part in parts for task in part.tasks), strict=False):
        merge_columns(columns[name], task.columns)
        rare |= task.kinds
    compared, transform, counter = job.compared, job.counter.transform, job.counter
    if compared is not None:
        rare, built = dict(sorted(rare.items())), total["num_built", ""]
        compared = replace(compared, rare=rare, num_built=built)
    rejected, settings, files = numbers_of(total, "rejected"), counter.settings, counter.files
    options: dict[str, Any] = {
        "processor": settings.processor,
        "encode": counter.encoder and counter.encoder.name,
        "labels": settings.labels,
        "media_root": job.media_root,
        "remote_media": list(job.remote_media),
        "seed": settings.seed,
    }
    if files is not None and files.overrides:
        options["processor_settings"] = files.overrides
    if settings.trust_remote_code:
        options["trust_remote_code"] = True
    manifest = LengthsManifest(
        fingerprint="",
        num_samples=total["num_samples", ""],
        num_rejected=sum(rejected.values()),
        encoder=_describe_encoder(counter, compared),
        options=options,
        transform=None
        if transform is None
        else decode_json(Transform, {**transform.to_json(), "is_random": job.is_random}),
        shards=tuple(shard.stated for shard in job.shards),
        text_engine=job.text_engine,
        sources=tuple(
            Source(
                name=name,
                media_root=job.media_root or layout.media_root,
                remote_media=tuple(job.remote_media),
                layout=None if layout == DEFAULT else layout,
                columns=None if counter.encoder else dict(sorted(columns[name].items())),
                **stated_sums(totals[name]),
            )
            for name, layout in layouts.items()
        ),
        files=tuple(part.file for part in parts),
        keys=tuple(tuple(task.key for task in part.tasks) for part in parts),
        methods=numbers_of(total, "method"),
        rejected=rejected,
        num_media=total["num_media", ""],
        software=list_versions(),
    )
    return seal_manifest(replace(manifest, fingerprint=fingerprint_table(manifest.to_json())))
