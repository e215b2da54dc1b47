"""The folder that a data set is written to: names in it, its manifest, and what is refused."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

from packidx.errors import OptionError, SourceError
from packidx.estimate.job import EstimateJob
from packidx.format.decode import decoded
from packidx.format.manifest import Layout
from packidx.format.outputs import PrecomputedManifest, PrecomputedShard
from packidx.io import urls
from packidx.io.own_files import Kind, check_free, is_within
from packidx.precompute.slices import SliceTotals
from packidx.records.shards import Shard, short_names
from packidx.software import software

KIND = Kind(
    what="data set",
    manifest=".packidx.json",  # with a dot: nobody who looks for data files takes it for one
    format="packidx-precomputed",
    names=lambda stated: [os.path.normpath(shard["name"]) for shard in stated["shards"]],
)


def check_output(output: str, shards: Sequence[Shard], sources: Sequence[str]) -> None:
    """Refuse an output that would replace or mix with what is not precompute's own.

    Raises:
        OptionError: it is, holds or lies in a source, holds other files, or is a URL.
    """
    if urls.is_url(output):
        raise OptionError(
            f"{output} is a URL, and precompute writes to folders of this machine: name one, and "
            "copy it to the store then"
        )
    for shard in shards:
        if is_within(shard.path, output):
            raise OptionError(
                f"{output} holds the source {shard.uri}: name another folder, no source is ever "
                "overwritten"
            )
    for source in sources:
        for name in (source, source.partition("=")[2]):
            folder = name.removeprefix("file://")
            if folder and os.path.isdir(folder) and is_within(output, folder):
                raise OptionError(
                    f"{output} lies in the source {name}, which would then hold the data twice: "
                    "name a folder outside it"
                )
    check_free(output, KIND)


def output_names(shards: Sequence[Shard]) -> list[str]:
    """Each shard's path below the output: the shortest end of its own that tells it from the rest.

    Raises:
        SourceError: two of them would be one file where case, or a letter's way of being written,
            makes no difference; a shard's name is another's folder; or an Arrow file.
    """
    for shard in shards:
        if shard.container == "tar":
            raise SourceError(
                f"{shard.uri} is a tar, which cannot be given columns in place: estimate counts it "
                "as it is, and the plan keeps what it counted"
            )
        if shard.container == "arrow":
            raise SourceError(
                f"{shard.uri} is an Arrow file, which cannot be given columns in place: save the "
                "data set as Parquet or JSON Lines (to_parquet, to_json of `datasets`) first"
            )
    names = short_names([shard.path for shard in shards])
    taken = {_folded(KIND.manifest): "packidx's own manifest"}
    for shard, name in zip(shards, names, strict=True):
        other = taken.setdefault(_folded(name), shard.uri)
        if other != shard.uri:
            raise _clash(shard.uri, other, name)
    for shard, name in zip(shards, names, strict=True):
        folder = os.path.dirname(_folded(name))
        while folder:
            if folder in taken:
                raise _clash(shard.uri, taken[folder], folder)
            folder = os.path.dirname(folder)
    return names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _clash(first: str, other: str, name: str) -> SourceError:
    return SourceError(
        f"{first} and {other} would both be {name} in the output: rename one of them, or "
        "write them to two folders"
    )


def manifest_of(
    job: EstimateJob, form: str, names: Sequence[str], totals_by_shard: Sequence[SliceTotals]
) -> PrecomputedManifest:
    """The manifest (FORMAT.md) of a finished data set, whose shards have these names."""
    total = SliceTotals.sum(totals_by_shard)
    layouts = [shard.layout.to_json() for shard in job.shards]
    return PrecomputedManifest(
        encoder=job.encoder,
        text_engine=job.backend,
        options={
            "meta": form,
            "media_root": job.media_root,
            "remote_media": list(job.remote_media),
        },
        software=software(),
        num_samples=total.num_samples,
        num_rejected=total.num_rejected,
        shards=tuple(
            PrecomputedShard(
                name=name,
                uri=shard.uri,
                source=shard.source,
                container=shard.container,
                bytes=shard.bytes,
                fingerprint=shard.fingerprint,
                layout=decoded(Layout, layout) if layout else None,
                **totals.to_json(),
            )
            for name, shard, layout, totals in zip(
                names, job.stated_shards, layouts, totals_by_shard, strict=True
            )
        ),
    )
