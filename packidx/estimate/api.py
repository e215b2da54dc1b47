"""`estimate_lengths`: count every sample of some sources into a lengths table."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packidx.errors import OptionError
from packidx.estimate.again import Earlier, Reused
from packidx.estimate.counter import CounterSettings, RecordCounter
from packidx.estimate.job import EstimateJob, job_shards, make_manifest
from packidx.estimate.parts import OldRows, finished_parts, rows_in, stated_sums
from packidx.estimate.summary import (
    CountSummary,
    check_rejected,
    dated,
    read_limit,
)
from packidx.estimate.survey import refuse_absent_columns, survey
from packidx.estimate.tasks import make_parts, plan_parts
from packidx.estimate.user_encoder import Encode
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import Layout, compared_of
from packidx.io import files, storage, urls
from packidx.io.output_folder import discard_abandoned, replacing
from packidx.io.own_files import remove_stale
from packidx.lengths.parts import KIND, existing_manifest
from packidx.records.media.opener import forget_media
from packidx.records.media.paths import check_folder, check_remote
from packidx.records.shards import check_unchanged, scan_shards
from packidx.records.sources.find_shards import find_shards
from packidx.records.sources.mixes import DataSet
from packidx.run import open_workers
from packidx.run.workers import Progress, num_workers, silent
from packidx.user_code import Function


@dataclass(frozen=True, kw_only=True)
class LengthsSummary(CountSummary):
    """The contents of a lengths table; its `sources` have ``num_tokens`` and ``num_label_tokens``
    (None where some row's are unknown) besides."""

    fingerprint: str
    existed: bool
    """The same table was there already and was left as it is."""
    num_parts: int = 0
    resumed_parts: int = 0
    """Parts that an earlier run of this very job had finished before it ended."""
    compared: Mapping[str, Any] | None = None
    """What came of comparing the processor with the real one (FORMAT.md); None without one."""
    reused: Reused | None = None
    """What of an earlier table is in it; None if there was none, or with `fresh`."""


def estimate_lengths(
    sources: Sequence[str | os.PathLike[str] | DataSet]
    | Mapping[str, str]
    | str
    | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    processor: str | os.PathLike[str] | None = None,
    processor_settings: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    encode: str | Encode | None = None,
    labels: str | None = None,
    transform: str | Function | None = None,
    seed: int = 0,
    media_root: str | os.PathLike[str] | None = None,
    remote_media: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    pair: str | None = None,
    answers: str | None = None,
    ignore: Sequence[str] = (),
    workers: int | None = None,
    engine: str = "local",
    max_rejected: str | float | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> LengthsSummary:
    """Count the tokens of every record of `sources` into the lengths table `output`.

    Pixels are not decoded, except by an `encode` that does. Every record becomes one row; one that
    cannot be a sample has ``status = 'rejected'`` and a reason. The table's bytes do not depend on
    `workers`, nor on whether the run was killed and started again: a restart with the same
    arguments reuses the parts that are finished, unless `encode` has no ``fingerprint()``.

    Args:
        sources: files, globs or folders, each possibly as ``NAME=…``, or URLs of any of these, or a
            dict of these by name; a `DataSet` has a layout of its own.
        output: the table's folder, or a URL of one. A lengths table there is replaced, whole; rows
            of unchanged shards are reused if it was made with the same options by the same
            software. Their media are not looked at.
        processor: folder or hub name of a Hugging Face processor; without one, lengths are
            taken from the records' own counts or guessed, and the rows say so.
        processor_settings: in place of the folder's own, ``{"images.max_pixels": 602112}``; a name
            without ``images``, ``videos`` or ``audio`` is of the processor itself.
        trust_remote_code: run the processor's own code; nothing of it is exact without that.
        encode: instead of a processor, the training's own encoder, callable(record) ->
            ``{"input_ids": …}``, media opened; or ``module:NAME`` of it. A ``count(record)`` wins.
        labels: which tokens are trained on (`LabelPolicy.parse`), with a processor.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it: applied to every record
            as it stands in its file, here and by the reader; what it returns is taken for it.
        seed: of the transform.
        media_root: folder of the media, or its URL: relative paths start there, and nothing outside
            it is read, links resolved. Otherwise it is the one that a mix states, or each shard's
            own folder.
        remote_media: folders, and URLs such as ``s3://corpus/images/``, elsewhere, below which
            records may refer to files and objects, too.
        columns: what the sources call their columns, ``{"messages": "chat"}``; see
            `packidx.format.terms.COLUMNS`. A data set of a mix that states columns of its own
            must not be among the sources then; the same holds for tags and the delimiter.
        tags: the words of their turns, ``{"role_tag": "speaker"}``; see `format.terms.TAGS`.
        delimiter: between the cells of CSV and TSV files, one character; a TSV has no quotes
            unless it is stated.
        pair: which side of preference pairs is taken, ``'chosen'`` or ``'rejected'``; by default
            none is, and their records are rejected.
        answers: ``'first'`` takes the first of a record's different answers; by default such
            records are rejected.
        ignore: columns that are as if they were not there. One that nothing reads and that holds
            what training should see is rejected otherwise (``unused_column``).
        workers: processes; the CPUs that this process may use by default.
        engine: ``'local'``, processes of this machine, or ``'ray'``: the session of Ray that there
            is, the cluster that RAY_ADDRESS names, or a new one here. The bytes are the same.
        max_rejected: share of a source's records that may be rejected: a number from 0 to 1, or
            text such as ``'5%'``. The table is written all the same; None raises nothing.
        fresh: count all records, whatever table is there.
        progress: called with how far the work is.

    Raises:
        SourceError: a source or the processor cannot be used, a worker process died, or more of a
            source than `max_rejected` is rejected.
        OptionError: an option or `output` cannot be used.
        MissingExtraError: Ray is asked for and not installed.
    """
    begun = time.monotonic()
    progress = progress or silent
    limit = read_limit(max_rejected)
    num_processes = num_workers(workers)
    output = urls.local_path(os.fspath(output))
    root, remote = check_folder(media_root), check_remote(remote_media)
    existing, wrong = existing_manifest(output)
    ignored = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    layout = Layout(
        columns or {},
        tags or {},
        delimiter=delimiter,
        pair=pair,
        ignore=ignored,
        answers=answers,
    )
    unread: list[str] = []
    if isinstance(sources, Mapping):
        sources = [f"{name}={place}" for name, place in sources.items()]
    shards = find_shards(sources, layout, unread)

    if hasattr(processor, "save_pretrained"):
        kind = type(processor).__name__
        raise OptionError(f"processor is a {kind}: give the folder or name that it is loaded from")
    name = None if processor is None else os.fspath(processor)
    settings = CounterSettings(
        *(name, processor_settings or {}, trust_remote_code, labels),
        encode=encode,
        transform=transform,
        seed=seed,
    )
    forget_media()
    with open_workers(engine, workers) as counting:
        counter = RecordCounter(settings, settings.load())
        earlier = None if existing is None or fresh else Earlier(output, existing)
        known = None if earlier is None else earlier.known_scan
        scans = scan_shards(shards, num_processes, progress, known)
        takes_media = counter.files is None or counter.files.image_settings is not None
        own = job_shards(shards, scans, name is not None, takes_media, root, remote)
        job = EstimateJob(own, counter, root, remote)
        if counter.transform is None:
            refuse_absent_columns(own)
        job = replace(job, **survey(counter, own)._asdict())
        rows: dict[str, OldRows] = {}
        found = None if wrong is None or fresh else Reused(reason=wrong)
        if earlier is not None:
            rows, found = earlier.find_rows(job)
        if earlier is not None and earlier.is_made_of(job, plan_parts(job, rows)):
            discard_abandoned(output)
            remove_stale(output, KIND, [file.path for file in earlier.manifest.files])
            found = Reused(earlier.manifest.num_samples)
            summary = _summary(output, earlier.manifest, begun, found, existed=True)
        else:
            uploaded = functools.partial(progress, "upload")
            with replacing(output, KIND, "fresh" if fresh else "", uploaded) as built:
                finished = rows_in(finished_parts(built.table)) if counter.is_known else {}
                plans = plan_parts(job, rows | finished)
                parts = make_parts(job, plans, built.table, counting, progress)
                storage.overlapped(
                    lambda each: check_unchanged(each.context.path, each.stated), own
                )
                manifest = make_manifest(job, parts)
                built.keep([file.path for file in manifest.files])
                files.write_json(os.path.join(built.table, KIND.manifest), manifest.to_json())
            if found is not None:
                counted = [task for plan in plans for task in plan.counted]
                number = sum(task.range.num_records for task in counted)
                names = list(dict.fromkeys(task.shard.name for task in counted))
                found = Reused(manifest.num_samples - number, number, names, found.reason)
            keys = [{task.key for task in plan.tasks} for plan in plans]
            resumed = sum(bool(of_part) and of_part <= finished.keys() for of_part in keys)
            summary = _summary(output, manifest, begun, found, resumed)
    summary = replace(summary, warnings=[*unread, *dated(job.encoder)])
    if limit is not None:
        check_rejected(summary.sources, limit, output)
    return summary


_OF_SOURCES = ("name", *stated_sums(Counter()), "columns")


def _summary(
    path: str,
    manifest: LengthsManifest,
    begun: float,
    reused: Reused | None = None,
    resumed: int = 0,
    existed: bool = False,
) -> LengthsSummary:
    compared = compared_of(manifest.encoder)
    return LengthsSummary(
        path=path,
        fingerprint=manifest.fingerprint,
        num_samples=manifest.num_samples,
        num_rejected=manifest.num_rejected,
        num_tokens=sum(source.num_tokens for source in manifest.sources),
        methods=dict(manifest.methods),
        rejected=dict(manifest.rejected),
        sources=[
            {name: getattr(source, name) for name in _OF_SOURCES} for source in manifest.sources
        ],
        existed=existed,
        seconds=time.monotonic() - begun,
        num_parts=len(manifest.files),
        resumed_parts=resumed,
        compared=None if compared is None else compared.to_json(),
        reused=reused,
    )
