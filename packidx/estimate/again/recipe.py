"""Whether a table was made as a job would make it."""

from __future__ import annotations

from dataclasses import replace

import packidx
from packidx.estimate.comparison import compared_with, may_be_compared_now
from packidx.estimate.job import EstimateJob, layouts_of
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import as_planned
from packidx.records.containers.tar.container import TAR
from packidx.records.shard_marks import is_marked
from packidx.records.shard_ranges import has_ranges

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
