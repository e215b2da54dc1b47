"""`estimate_lengths`: count every sample of some sources into a lengths table.

Of the table that is there, the rows of a task are reused if a part has the task's key. A shard that
has the URI, the size and the time of change (in a store: the version) of the manifest's is not
scanned.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from packidx.errors import BadRecord, FormatError, OptionError, SourceError
from packidx.estimate.counter import (
    CounterSettings,
    ExaminedRecord,
    JobShard,
    RecordCounter,
    examine_batch,
    job_shards,
    rare_collections,
)
from packidx.estimate.job import (
    EstimateJob,
    make_manifest,
    table_recipe,
    table_spelling,
    without_plan_options,
)
from packidx.estimate.parts import OldRows, finished_parts, rows_in, stated_sums
from packidx.estimate.summary import CountSummary, check_rejected, read_limit, warn_of_date
from packidx.estimate.tasks import make_parts, plan_parts
from packidx.estimate.user_encoder import Encode
from packidx.format.lengths import KIND, LengthsManifest, existing_manifest
from packidx.format.manifest import DEFAULT, Layout, RecordRange, Shard, compared_of
from packidx.io import files, storage, urls
from packidx.io.output_folder import discard_abandoned, remove_stale, replace_output
from packidx.processor.text.gigatoken import LITTLE, NUM_TEXTS, choose_engine
from packidx.records.containers.base import file_version
from packidx.records.containers.registry import get_container
from packidx.records.containers.tar import TORN
from packidx.records.media.opener import forget_media
from packidx.records.media.paths import check_places
from packidx.records.read import NOT_USED, RecordReader
from packidx.records.shards import InputFile, check_unchanged, scan_shards
from packidx.records.sources.find_shards import DataSet, find_shards
from packidx.run.workers import Progress, num_workers, open_workers, report_nothing
from packidx.software import list_versions
from packidx.user_code import Function


@dataclass(frozen=True, slots=True)
class Reused:
    """The rows of a table that are an earlier one's, and why the others are not."""

    num_samples: int = 0
    """Rows that were reused."""
    num_counted: int = 0
    """Rows that were counted."""
    counted: list[str] = field(default_factory=list)
    """Shards with rows that were counted."""
    reason: str | None = None
    """Reason if nothing was reused at all."""


@dataclass(frozen=True, kw_only=True)
class LengthsSummary(CountSummary):
    """The contents of a lengths table; its `sources` have ``num_tokens`` and ``num_label_tokens``
    (None if some row's are unknown) besides."""

    fingerprint: str
    existed: bool
    """The same table was there already and was left as it is."""
    num_parts: int
    resumed_parts: int
    """Parts that an earlier run of this very job had finished before it ended."""
    compared: Mapping[str, Any] | None
    """The result of comparing the processor with the real one (FORMAT.md); None without one."""
    reused: Reused | None
    """The part of an earlier table that is in it; None if there was none, or with `fresh`."""


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
        sources: files, globs, folders or URLs, each possibly as ``NAME=…``; a dict of these by
            name; a `DataSet` has a layout of its own.
        output: the table's folder, or a URL of one. A lengths table there is replaced, whole; rows
            of unchanged shards are reused if it was made with the same options by the same
            software. Their media are not looked at.
        processor: folder or hub name of a Hugging Face processor; without one, lengths are
            taken from the records' own counts or guessed, and the rows say so.
        processor_settings: in place of the folder's own, ``{"images.max_pixels": 602112}``.
        trust_remote_code: run the processor's own code; nothing of it is exact without that.
        encode: instead of a processor, the training's own encoder, callable(record) ->
            ``{"input_ids": …}``, media opened; or ``module:NAME`` of it. A ``count(record)`` wins.
        labels: which tokens are trained on (`LabelPolicy.parse`), with a processor.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it: applied to every record
            as it stands in its file, here and by the reader.
        seed: of the transform.
        media_root: folder or URL of the media, outside of which nothing is read, links resolved.
            Otherwise it is the one that a mix states, or each shard's own folder.
        remote_media: folders, and URLs such as ``s3://corpus/images/``, elsewhere, below which
            records may refer to files and objects, too.
        columns: what the sources call their columns (`packidx.format.terms.COLUMNS`),
            ``{"messages": "chat"}``. With it, no data set of a mix may state columns of its own;
            the same holds for tags and the delimiter.
        tags: the words of their turns (`format.terms.TAGS`), ``{"role_tag": "speaker"}``.
        delimiter: between the cells of CSV and TSV files; a TSV has no quotes without it.
        pair: side of preference pairs to take, ``'chosen'`` or ``'rejected'``; by default their
            records are rejected.
        answers: ``'first'`` takes the first of a record's different answers; by default such
            records are rejected.
        ignore: columns that are as if they were not there. Others that nothing reads are refused if
            they hold what training should see.
        workers: processes; the CPUs that this process may use by default.
        engine: ``'local'``, processes of this machine, or ``'ray'``: the session of Ray that there
            is, the cluster that RAY_ADDRESS names, or a new one here. The bytes are the same.
        max_rejected: share of a source's records that may be rejected, from 0 to 1 or as ``'5%'``.
            The table is written all the same; None raises nothing.
        fresh: count all records, whatever table is there.
        progress: called with how far the work is.

    Raises:
        SourceError: a source or the processor cannot be used, a worker process died, or more of a
            source than `max_rejected` is rejected.
        OptionError: an option or `output` cannot be used.
        MissingExtraError: Ray is asked for and not installed.
    """
    begun = time.monotonic()
    progress = progress or report_nothing
    limit = read_limit(max_rejected)
    num_processes = num_workers(workers)
    output = urls.local_path(os.fspath(output))
    root, remote = check_places(media_root, remote_media)
    earlier, reason = existing_manifest(output)
    if fresh:
        earlier = reason = None
    ignored = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    layout = Layout(
        columns or {}, tags or {}, delimiter=delimiter, pair=pair, ignore=ignored, answers=answers
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
    with rare_collections(), open_workers(engine, workers) as counting:
        counter = RecordCounter(settings)
        known = [] if earlier is None else [_known_scans(earlier)]
        scans = scan_shards(shards, num_processes, progress, *known)
        takes_media = counter.files is None or counter.files.image_settings is not None
        own = job_shards(shards, scans, takes_media, root, remote)
        job = EstimateJob(own, counter, root, remote)
        survey_data(job)
        draft, may_reuse = make_manifest(job), earlier is not None or reason is not None
        rows, resumed = dict[str, OldRows](), 0
        if earlier is not None:
            rows, reason = _old_rows(output, earlier, draft, counter.is_known)
        plans = plan_parts(job, draft, rows)
        existed = False
        if earlier is not None and not any(plan.counted for plan in plans):
            names = [file.path.rpartition("-")[0] for file in earlier.files]
            is_made_of = names == [plan.name for plan in plans]
            existed = is_made_of and table_spelling(draft) == table_spelling(earlier)
        if existed and earlier is not None:
            manifest = earlier
            discard_abandoned(output)
            remove_stale(output, KIND, [file.path for file in manifest.files])
        else:
            uploaded = functools.partial(progress, "upload")
            with replace_output(output, KIND, "fresh" if fresh else "", uploaded) as built:
                finished = rows_in(finished_parts(built.table)) if counter.is_known else {}
                plans = plan_parts(job, draft, rows | finished)
                parts = make_parts(job, plans, built.table, counting, progress)
                storage.map_overlapped(
                    lambda each: check_unchanged(each.file.path, each.stated), own
                )
                manifest = make_manifest(job, parts)
                built.keep([file.path for file in manifest.files])
                files.write_json(os.path.join(built.table, KIND.manifest), manifest.to_json())
            keys = [{task.key for task in plan.tasks} for plan in plans]
            resumed = sum(bool(of_part) and of_part <= finished.keys() for of_part in keys)
    counted = [task for plan in plans for task in plan.counted]
    number = sum(task.range.num_records for task in counted)
    names = list(dict.fromkeys(task.shard.name for task in counted))
    compared = compared_of(manifest.encoder)
    summary = LengthsSummary(
        path=output,
        fingerprint=manifest.fingerprint,
        num_samples=manifest.num_samples,
        num_rejected=manifest.num_rejected,
        num_tokens=sum(source.num_tokens for source in manifest.sources),
        methods=dict(manifest.methods),
        rejected=dict(manifest.rejected),
        sources=[{each: getattr(source, each) for each in _SOURCE} for source in manifest.sources],
        existed=existed,
        seconds=time.monotonic() - begun,
        num_parts=len(manifest.files),
        resumed_parts=resumed,
        compared=None if compared is None else compared.to_json(),
        reused=Reused(manifest.num_samples - number, number, names, reason) if may_reuse else None,
        warnings=[*unread, *warn_of_date(manifest.encoder)],
    )
    if limit is not None:
        check_rejected(summary.sources, limit, output)
    return summary


_SOURCE = ("name", *stated_sums(Counter()), "columns")


def _known_scans(manifest: LengthsManifest) -> Callable[[InputFile], Shard | None]:
    """Return what gives the shard of a file that a table was counted of, and None for any other."""
    # A manifest does not say which samples are torn.
    is_usable = manifest.software == list_versions() and TORN not in manifest.rejected
    by_uri = {shard.uri: shard for shard in manifest.shards if is_usable}
    layouts = {each.name: without_plan_options(each.layout or DEFAULT) for each in manifest.sources}

    def find_known(file: InputFile) -> Shard | None:
        shard = by_uri.get(file.uri)
        if shard is None or not shard.ranges or shard.container != file.container:
            return None
        if layouts[shard.source] != without_plan_options(file.layout):
            return None
        if (shard.bytes, shard.version) != file_version(file.path):
            return None
        return replace(shard, source=file.source)

    return find_known


def _old_rows(
    path: str, manifest: LengthsManifest, draft: LengthsManifest, is_known: bool
) -> tuple[dict[str, OldRows], str | None]:
    """Return the rows of a table that can be reused by the keys of their tasks, and why none."""
    now, was = table_recipe(draft), table_recipe(manifest)
    names = [name for name in {**now, **was} if now.get(name) != was.get(name)]
    reason = f"counted with another {', '.join(names).replace('_', ' ')}" if names else None
    if not is_known:
        reason = "its encoder has no fingerprint to be known by"
    try:
        stored = [file.within(path) for file in manifest.files if reason is None]
        return rows_in(zip(stored, manifest.keys or (), strict=False)), reason
    except FormatError as error:
        return {}, str(error).partition(":")[0]


# -- what a sample of the data decides -------------------------------------------------------------

_NUM_RANGES = 16
_NUM_FIRST = 1000
"""Records that each source begins with and that are looked through for its columns."""
_NUM_MORE = 64
"""Records of ranges from all over a source that are looked through, too, if it has columns of its
own."""


def survey_data(job: EstimateJob) -> None:
    """Decide what is left to decide of a job, on records from all over its data.

    Raises:
        SourceError: a shard cannot be read, or records have leftovers.
        OptionError: a column is stated of a source, and none of its records has it.
    """
    counter, transform = job.counter, job.counter.transform
    _check_columns(job)
    text, comparer = counter.counter.text, counter.comparer
    if comparer is None and transform is None:
        return

    def apply_twice(record: dict[str, Any], sample_id: int) -> dict[str, Any]:
        """Apply the transform, and note if two copies of a record become different ones."""
        assert transform is not None
        if not job.is_random:
            copies = (copy.deepcopy(record) for _ in range(2))
            made = [transform.apply(one, sample_id, copy=n) for n, one in enumerate(copies)]
            job.is_random = repr(made[0]) != repr(made[1])
        return transform.apply(record, sample_id)

    ranges = [(shard, part) for shard in job.shards for part in shard.stated.ranges]
    chosen, texts = ranges[:: max(1, -(-len(ranges) // _NUM_RANGES))], []
    for shard, part in chosen:
        read = shard.read(part, change=None if transform is None else apply_twice)
        raws = itertools.islice(read, -(-NUM_TEXTS // len(chosen)))
        if comparer is None:
            deque(raws, 0)
        else:
            items = examine_batch(raws, shard, 0, counter, only_compare=True)
            texts += [own for item in items if (own := _render_text(counter, item))]
    if text is not None and comparer is not None:
        is_little = sum(shard.stated.bytes for shard in job.shards) < LITTLE
        text.fast, job.text_engine = choose_engine(text.tokenizer, [] if is_little else texts)
        job.compared = comparer.compared = comparer.close()


def _check_columns(job: EstimateJob) -> None:
    """Raise an error if records have leftovers, or lack a column that is stated of their source.

    The error names the leftovers of all sources. A transform and the user's own encoder may use
    any column.
    """
    counter, left = job.counter, dict[str, list[str]]()
    change = None if counter.transform is None else counter.transform.apply
    places: dict[str, list[tuple[JobShard, RecordRange]]] = {}
    for shard in job.shards:
        own = places.setdefault(shard.file.source, [])
        own += [(shard, part) for part in shard.stated.ranges]
    for source, ranges in places.items():
        layout = ranges[0][0].file.layout if ranges else None
        if layout is None or (counter.encoder is not None and (change or not layout.columns)):
            continue
        uses, seen, rest = dict[str, str](), set[str](), _NUM_FIRST
        for number, (shard, part) in enumerate(ranges):
            is_more = bool(layout.columns) and number % max(1, len(ranges) // _NUM_RANGES) == 0
            most = rest or _NUM_MORE * is_more
            if not most:
                continue
            file = shard.file
            reader = RecordReader(layout, change, uses, has_media=shard.has_media)
            raws = get_container(file.container, layout.delimiter).read(file.path, part)
            for raw in itertools.islice(raws, most):
                rest = max(0, rest - 1)
                reader.read(raw)
                seen.update(raw.data if isinstance(raw.data, dict) else ())
                for member in raw.members or ():
                    seen.update((member, ending := member[len(raw.key or "") :], ending[1:]))
        for key, column in layout.columns.items() if seen and change is None else ():
            if seen.isdisjoint((column, *column.split(","))):
                raise OptionError(
                    f"no record of {source} has a column {column!r}, which is stated to hold its "
                    f"{key}: they have {', '.join(sorted(seen))[:300]}"
                )
        names = sorted(name for name, use in uses.items() if use == NOT_USED)
        if names and counter.encoder is None:
            left[source] = names
    if left:
        stated = "; ".join(f"{source}: {', '.join(names)}" for source, names in left.items())
        ignored = ",".join(sorted({name for names in left.values() for name in names}))
        raise SourceError(
            f"nothing reads these columns or keys ({stated}): add --ignore {ignored} to leave them "
            "out, or see docs/data.md for how to use them"
        )


def _render_text(counter: RecordCounter, item: ExaminedRecord) -> str | None:
    """Return what is tokenized of a record; None if it becomes a rejected row."""
    talk = item.conversation
    if item.error is not None or talk is None or talk.input_ids is not None:
        return None
    media = counter.counter.count_media([talk], [item.infos])
    try:
        return counter.counter.expand(talk, 0, media).text
    except (BadRecord, MemoryError):  # raised again where the record is counted
        return None
