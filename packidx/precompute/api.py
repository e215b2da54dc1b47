"""`precompute`: write a data set back with the counts of every record."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packidx.errors import LimitError, OptionError, SourceError
from packidx.estimate.api import decided
from packidx.estimate.counter import CounterSettings, RecordCounter
from packidx.estimate.examine import ShardContext
from packidx.estimate.job import EstimateJob, check_shards, shard_contexts
from packidx.estimate.summary import CountSummary, check_rejected, read_limit
from packidx.estimate.tasks import CounterSetup, count_by
from packidx.format.manifest import Layout as StatedLayout
from packidx.format.manifest import decoded
from packidx.format.outputs import PrecomputedManifest, PrecomputedShard
from packidx.io import files, urls
from packidx.io.output_folder import OutputFolder, replacing
from packidx.io.own_files import Kind, check_free, is_within
from packidx.precompute.parquet import count_columns, write_parquet
from packidx.precompute.slices import ShardSlice, SliceTotals, make_slices
from packidx.precompute.text import rewrite_text
from packidx.precompute.values import LISTS, check_form
from packidx.records.layout import Layout
from packidx.records.media.opener import forget_media
from packidx.records.media.paths import check_folder, check_remote
from packidx.records.shards import Shard, is_large, scan_shards, short_names
from packidx.records.sources.find_shards import find_shards, not_read, origins
from packidx.run.workers import Progress, WorkerDied, Workers, num_workers, open_workers, silent
from packidx.software import software

_COPIED = 4 << 20


@dataclass(frozen=True, kw_only=True)
class PrecomputeSummary(CountSummary):
    """What a data set with counts holds; rejected records are written as they were."""

    num_shards: int
    encoder: dict[str, Any]
    """Fingerprint and name of the processor."""


def precompute(
    sources: Sequence[str] | str,
    output: str | os.PathLike[str],
    processor: str | os.PathLike[str],
    *,
    processor_settings: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    meta: str = LISTS,
    media_root: str | os.PathLike[str] | None = None,
    remote_media: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    ignore: Sequence[str] = (),
    workers: int | None = None,
    engine: str = "local",
    max_rejected: str | float | None = None,
    progress: Progress | None = None,
) -> PrecomputeSummary:
    """Write every shard of `sources` to `output` with ``_text_tokens`` and ``mm_inputs_meta``.

    ``_text_tokens`` and the media's ``n_tokens`` sum to ``len(input_ids)``. No other byte of a JSON
    or CSV file changes; a record that cannot be counted is left as it is, in a table with empty
    cells. `output` is built beside its place and swapped in whole; its bytes do not depend on
    `workers` and `engine`.

    Args:
        sources: files, globs, folders or mixes, as for `packidx.estimate_lengths`.
        output: a folder; one that this has written before is replaced. Each shard is in it under
            the shortest end of its path that no other shard has.
        processor: folder or hub name of a Hugging Face processor.
        processor_settings, trust_remote_code: as for `packidx.estimate_lengths`.
        meta: ``'lists'`` (``[height, width, n_tokens]``, ``[frames, height, width, fps, seconds,
            n_tokens]``) or ``'objects'`` for the entries of ``mm_inputs_meta``.
        media_root, remote_media, columns, tags, delimiter, ignore, workers, engine: as for
            `packidx.estimate_lengths`.
        max_rejected: as for `packidx.estimate_lengths`.
        progress: called with how far the work is.

    Raises:
        SourceError: a source or the processor cannot be used, two sources would be one file, no
            record could be counted, or, when all is written, more of a source than `max_rejected`.
        OptionError: an option or `output` cannot be used.
    """
    begun = time.monotonic()
    progress = progress or silent
    num_processes = num_workers(workers)
    form = check_form(meta)
    limit = read_limit(max_rejected)
    output = os.fspath(output)
    root, remote = check_folder(media_root), check_remote(remote_media)
    given = [sources] if isinstance(sources, str) else [os.fspath(source) for source in sources]
    shards = find_shards(
        given, Layout(columns or {}, tags or {}, delimiter=delimiter, ignore=tuple(ignore))
    )
    _refuse_pairs(shards)
    left_out = not_read(shards)
    names = output_names(shards)
    check_output(output, shards, given)
    settings = CounterSettings(os.fspath(processor), processor_settings or {}, trust_remote_code)
    forget_media()
    with open_workers(engine, workers) as counting:
        if counting.takes(num_processes) and is_large(shards):
            counting.start(CounterSetup(settings))
        counter = _build(settings)
        scans = scan_shards(shards, num_processes, progress)
        job = decided(EstimateJob(shards, scans, settings, counter, root, remote))
        with replacing(output, KIND, secrets.token_hex(32)) as built:
            totals_by_shard = _write(job, names, form, built, counting, progress)
            check_shards(job)
            _refuse_nothing(totals_by_shard)
            manifest = manifest_of(job, form, names, totals_by_shard).to_json()
            files.write_json(os.path.join(built.table, KIND.manifest), manifest)
            for inner, _, _ in os.walk(built.table):
                files.fsync_path(inner)
    summary = _summary(output, job, totals_by_shard, time.monotonic() - begun)
    summary = replace(summary, not_read=[*left_out.notes], warnings=[*left_out.warnings])
    summary = replace(summary, taken_from=origins(shards))
    if limit is not None:
        check_rejected(summary.sources, limit, output)
    return summary


def _refuse_pairs(shards: Sequence[Shard]) -> None:
    source = next((shard.source for shard in shards if shard.layout.pair is not None), None)
    if source is not None:
        raise OptionError(
            f"the mix says `pair` of {source}, and a record that is written back has both sides "
            "and room for one's count: leave `pair` out, or write each side's records yourself"
        )


def _refuse_nothing(totals_by_shard: Sequence[SliceTotals]) -> None:
    """A data set of which nothing could be counted replaces none that was.

    Raises:
        SourceError: all records are rejected.
    """
    total = SliceTotals.sum(totals_by_shard)
    if total.num_samples and total.num_rejected == total.num_samples:
        reasons = ", ".join(f"{number} {reason}" for reason, number in total.rejected.items())
        raise SourceError(
            f"none of the {total.num_samples} records could be counted ({reasons}), so nothing is "
            "written: packidx estimate says why, record by record"
        )


def _build(settings: CounterSettings) -> RecordCounter:
    counter = settings.build()
    if counter.fingerprint() is None:
        raise SourceError(
            f"the processor {settings.processor} has no tokenizer or no chat template, so text "
            "cannot be counted: name a folder that has both"
        )
    return counter


def _write(
    job: EstimateJob,
    names: Sequence[str],
    form: str,
    output: OutputFolder,
    workers: Workers,
    progress: Progress,
) -> list[SliceTotals]:
    """All shards, in order; slices are put together as they come and removed."""
    infos = shard_contexts(job)
    slices = make_slices(infos, job.scans, form)
    scratch = output.scratch("slices")
    total, done = sum(each.record_range.num_records for each in slices), 0
    totals_by_shard = [SliceTotals() for _ in infos]
    waiting: list[str] = []
    count = functools.partial(write_slice, scratch=scratch)
    try:
        for number, totals in count_by(
            workers,
            count,
            slices,
            job.settings,
            job.counter,
            here=lambda: job.counter,
            in_turn=True,
        ):
            shard_slice = slices[number]
            totals_by_shard[shard_slice.shard.number].merge(totals)
            waiting.append(_slice_path(shard_slice, scratch))
            if shard_slice.end is None:
                path = os.path.join(output.table, names[shard_slice.shard.number])
                _put_together(shard_slice.shard, waiting, path)
                waiting = []
            done += totals.num_samples
            progress("count", done, total)
    except WorkerDied as died:
        paths = sorted({slices[number].shard.path for number in died.waiting})
        raise died.error(f"counted {' or '.join(paths[:3])}") from None
    return totals_by_shard


def write_slice(shard_slice: ShardSlice, counter: RecordCounter, scratch: str) -> SliceTotals:
    """One slice, written to the scratch folder."""
    path = _slice_path(shard_slice, scratch)
    temporary = f"{path}.{secrets.token_hex(8)}"  # of this process alone: another may do the same
    write = count_columns if shard_slice.shard.container == "parquet" else rewrite_text
    try:
        totals = write(shard_slice, counter, temporary)
    except LimitError as error:
        raise LimitError(f"{shard_slice.shard.path}, {error}") from None
    os.replace(temporary, path)
    return totals


def _slice_path(shard_slice: ShardSlice, scratch: str) -> str:
    return os.path.join(scratch, f"{shard_slice.number:08d}")


def _put_together(shard: ShardContext, paths: Sequence[str], output: str) -> None:
    """A shard of its slices, which are gone then, on disk."""
    os.makedirs(os.path.dirname(output), exist_ok=True)
    if shard.container == "parquet":
        write_parquet(shard, paths, output)
        for path in paths:
            os.unlink(path)
    else:
        os.replace(paths[0], output)
        with open(output, "ab") as file:
            for path in paths[1:]:
                with open(path, "rb") as source:
                    shutil.copyfileobj(source, file, _COPIED)
                os.unlink(path)
    files.fsync_path(output)


def _summary(
    output: str, job: EstimateJob, totals_by_shard: Sequence[SliceTotals], seconds: float
) -> PrecomputeSummary:
    total = SliceTotals.sum(totals_by_shard)
    sums: dict[str, SliceTotals] = {}
    for shard, totals in zip(job.shards, totals_by_shard, strict=True):
        sums.setdefault(shard.source, SliceTotals()).merge(totals)
    return PrecomputeSummary(
        path=output,
        num_shards=len(totals_by_shard),
        num_samples=total.num_samples,
        num_rejected=total.num_rejected,
        num_tokens=total.num_tokens,
        methods=dict(sorted(total.methods.items())),
        rejected=dict(sorted(total.rejected.items())),
        sources=[{"name": name, **totals.to_json()} for name, totals in sums.items()],
        encoder={} if job.encoder is None else job.encoder.to_json(),
        seconds=seconds,
    )


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
                layout=decoded(StatedLayout, layout) if layout else None,
                **totals.to_json(),
            )
            for name, shard, layout, totals in zip(
                names, job.stated_shards, layouts, totals_by_shard, strict=True
            )
        ),
    )
