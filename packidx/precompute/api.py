"""`precompute`: write a data set back with the counts of every record."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import time
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
from packidx.io import files
from packidx.io.output_folder import OutputFolder, replacing
from packidx.precompute.output import KIND, check_output, manifest_of, output_names
from packidx.precompute.parquet import count_columns, write_parquet
from packidx.precompute.slices import ShardSlice, SliceTotals, make_slices
from packidx.precompute.text import rewrite_text
from packidx.precompute.values import LISTS, check_form
from packidx.records.layout import Layout
from packidx.records.media.opener import forget_media
from packidx.records.media.paths import check_folder, check_remote
from packidx.records.shards import Shard, is_large, scan_shards
from packidx.records.sources.find_shards import find_shards, not_read, origins
from packidx.run.engines import open_workers
from packidx.run.limits import num_workers
from packidx.run.progress import Progress, silent
from packidx.run.workers import WorkerDied, Workers

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
