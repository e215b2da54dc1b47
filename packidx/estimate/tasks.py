"""Tasks: which ranges of which shards make a part file, and all parts made, here or by workers."""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.digests import canonical_json, digest
from packidx.errors import MismatchError, SourceError
from packidx.estimate.compare import Compared
from packidx.estimate.counter import (
    BATCH,
    Counted,
    CounterSettings,
    ExaminedRecord,
    RecordCounter,
    ShardContext,
    count_rows,
    examine_batch,
)
from packidx.estimate.job import EstimateJob, Task, list_tasks
from packidx.estimate.parts import (
    BUILT,
    OldRows,
    Part,
    TaskRows,
    read_part,
    resumed_part,
    write_part,
)
from packidx.estimate.user_encoder import counts_of
from packidx.format import schema
from packidx.format.parquet import as_arrow
from packidx.format.schema import METHODS
from packidx.io.copies import StoredFile
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import (
    UNKNOWN,
    Counts,
    MediaColumns,
    Spans,
)
from packidx.processor.kinds import KINDS
from packidx.processor.text.gigatoken import Gigatoken
from packidx.records.containers.base import TASK_BYTES, TASK_RECORDS
from packidx.records.media.opener import forget_media
from packidx.records.read import RecordReader, read_records
from packidx.run.workers import Progress, Workers

_TABLES = 64
"""Tables that are joined at a time: one takes 50 kB of Arrow's objects, however few its rows."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The work of making one part.

    Attributes:
        number: of the part.
        tasks: what its rows are, in order.
        key: digest of all that decides the rows.
        finished: this part, of a killed run.
        old: otherwise, the rows of each task in an earlier table; None if the task is counted.
    """

    number: int
    tasks: tuple[Task, ...]
    key: str
    finished: StoredFile | None = None
    old: tuple[OldRows | None, ...] = ()

    @property
    def name(self) -> str:
        """Name of the file up to the key."""
        return f"part-{self.number:05d}-{self.key}"

    @property
    def num_records(self) -> int:
        return sum(task.range.num_records for task in self.tasks)

    @property
    def counted(self) -> list[Task]:
        """The tasks of which no rows are reused."""
        if self.finished is not None:
            return []
        return [task for task, old in zip(self.tasks, self.old, strict=True) if old is None]


def plan_parts(job: EstimateJob) -> list[PartPlan]:
    """Return at least one part: tasks in order, small ones together until about `TASK_BYTES`."""
    plans: list[PartPlan] = []
    tasks: list[Task] = []
    nbytes, num_records = 0, 0

    def close() -> None:
        nonlocal tasks, nbytes, num_records
        parts = [
            [task.key, task.shard.number, task.shard.source, task.shard.name, task.first_id]
            for task in tasks
        ]
        key = digest(canonical_json(parts))[:16]
        plans.append(PartPlan(len(plans), tuple(tasks), key, old=(None,) * len(tasks)))
        tasks, nbytes, num_records = [], 0, 0

    for task in list_tasks(job):
        part = task.range
        is_full = nbytes + part.nbytes > TASK_BYTES * 3 // 2
        if tasks and (is_full or num_records + part.num_records > TASK_RECORDS * 3 // 2):
            close()
        tasks.append(task)
        nbytes += part.nbytes
        num_records += part.num_records
    if tasks or not plans:
        close()
    return plans


def make_parts(
    job: EstimateJob, plans: Sequence[PartPlan], folder: str, workers: Workers, progress: Progress
) -> list[Part]:
    """Make the parts of a table, and return them in order.

    Args:
        job: the job.
        plans: all of it.
        folder: where they are written.

    Raises:
        SourceError: a shard cannot be read or is no longer what was scanned, or a worker died.
        OSError: a part cannot be written.
    """
    total, done = sum(plan.num_records for plan in plans), 0
    parts: list[Part] = []

    def advance(records: int) -> None:
        nonlocal done
        done += records
        progress("count", done, total)

    if workers.takes(sum(bool(plan.counted) for plan in plans)):
        counter, text, comparer = job.counter, job.counter.counter.text, job.counter.comparer
        is_fast = text is not None and text.fast is not None
        compared = None if comparer is None else comparer.compared
        known = counter.settings, counter.files, compared, is_fast, counter.loaded
        setup = functools.partial(_start_counter, *known)
        for part in workers.map(functools.partial(_make_there, folder=folder), plans, setup):
            parts.append(part)
            advance(part.file.rows)
    else:  # processes that only copy would take longer to start
        for plan in plans:
            parts.append(make_part(plan, job.counter, folder, advance))
    return parts


def _make_there(plan: PartPlan, counter: RecordCounter, folder: str) -> Part:
    return make_part(plan, counter, folder, lambda records: None)


def make_part(
    plan: PartPlan, counter: RecordCounter, folder: str, progress: Callable[[int], None]
) -> Part:
    """Count the records of a part, or reuse their rows, and write its file.

    Raises:
        SourceError: a shard cannot be read or is no longer what was scanned.
        OSError: the part cannot be written.
    """
    keys = [task.key for task in plan.tasks]
    if plan.finished is not None:
        progress(plan.num_records)
        return resumed_part(plan.finished, keys)
    tables, known = [schema.LENGTHS_WITH_SPANS.empty_table()], []
    for task, old in zip(plan.tasks, plan.old, strict=True):
        if old is None:
            columns = dict[str, str]()
            if counter.comparer is not None:
                counter.comparer.begin_task()
            tables.append(_count(task, counter, columns, progress))
            kinds = {} if counter.comparer is None else dict(counter.comparer.kinds)
        else:
            columns, kinds = old.rows.columns, old.rows.kinds
            tables.append(_reused(task, old))
            progress(task.range.num_records)
        if len(tables) > _TABLES:
            tables = [pa.concat_tables(tables).combine_chunks()]
        known.append(TaskRows(task.shard.name, task.range.num_records, columns, kinds))
    rows = pa.concat_tables(tables).combine_chunks()
    return write_part(folder, plan.name, rows, known, keys)


def _reused(task: Task, old: OldRows) -> pa.Table:
    """Return the rows of a task as a count would make them.

    Raises:
        FormatError: a part is damaged.
        OSError: it cannot be read.
    """
    num, shard, first = task.range.num_records, task.shard, task.first_id
    rows = read_part(old.file).slice(old.first, num)
    made, now = (
        pc.binary_join_element_wise(f"{name}#", rows.column("row").cast(pa.string()), "")
        for name in (old.rows.name, shard.name)
    )
    values = {
        "sample_id": as_arrow(np.arange(first, first + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.source, pa.string()), num),
        "key": pc.if_else(pc.equal(rows.column("key"), made), now, rows.column("key")),
    }
    for name, column in values.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, schema.LENGTHS_WITH_SPANS.field(name), column)
    return rows


def _count(
    task: Task, counter: RecordCounter, columns: dict[str, str], progress: Callable[[int], None]
) -> pa.Table:
    """Count the records of a task.

    Args:
        columns: gets the use of each column, unless the user's own encoder reads the records.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    tables, shard, part = [schema.LENGTHS_WITH_SPANS.empty_table()], task.shard, task.range
    shift, transform = task.first_id - part.first_row, counter.transform
    change = None if transform is None else lambda record, row: transform.apply(record, row + shift)
    told = None if counter.encoder is not None else columns
    reader = RecordReader(shard.layout, change, told, has_media=shard.has_media)
    read = read_records(shard.path, part, reader, shard.container)
    while rows := examine_batch(itertools.islice(read, BATCH), shard, shift, counter):
        tables.append(_table(shard, rows, counter))
        progress(len(rows))
    counted = pa.concat_tables(tables)
    if counted.num_rows != part.num_records:
        raise SourceError(
            f"{shard.path} changed while it was counted: {part.num_records} records before and "
            f"{counted.num_rows} now between bytes {part.start} and {part.end}; start again"
        )
    return counted


def _start_counter(
    settings: CounterSettings,
    files: ProcessorFiles | None,
    compared: Compared | None,
    is_fast: bool,
    loaded: tuple[str | None, ...],
) -> RecordCounter:
    """Return the counter of a worker process.

    Args:
        is_fast: gigatoken tokenizes.
        loaded: fingerprints of the encoder and the transform that the parent has.

    Raises:
        MismatchError: this process loads another encoder or transform.
    """
    # The processes are the parallelism, also of what a user's encoder imports.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    gc.set_threshold(100_000, 50, 100)  # records are many small objects, and hold no cycles
    forget_media()  # a process of the user's own session may have seen the media before
    fast = None
    if is_fast and files is not None and files.tokenizer is not None:
        fast = Gigatoken(files.tokenizer)
    counter = RecordCounter(settings, files, compared, fast)
    if counter.loaded != loaded:
        raise MismatchError(
            "the encoder or the transform changed while it was loaded: a worker has "
            f"{counter.loaded}, the parent {loaded}. Start again."
        )
    return counter


def _table(shard: ShardContext, rows: Sequence[ExaminedRecord], counter: RecordCounter) -> pa.Table:
    counted = count_rows(rows, counter)
    num = len(rows)
    names = [f"{shard.name}#{item.row}" if item.key is None else item.key for item in rows]
    columns: dict[str, Any] = {
        "sample_id": [item.sample_id for item in rows],
        "source": pa.repeat(shard.source, num),
        "key": names,
        "shard": pa.repeat(shard.number, num),
        "row": [item.row for item in rows],
        "offset": [item.offset for item in rows],
        "nbytes": [item.nbytes for item in rows],
    }
    columns.update(_content_columns(rows))
    columns.update(_merged([count_columns(*each, num) for each in counted], counted, num))
    if any(item.measured is not None and item.measured.kinds is None for item in rows):
        # Only the user's encoder knows what these records hold.
        known = [item.measured is not None and item.measured.kinds is not None for item in rows]
        nothing = pa.scalar(None, columns["media"].type)
        columns["media"] = pc.if_else(pa.array(known), columns["media"], nothing)
    columns.update(_status_columns(rows, counter))
    arrays = [_array(columns[field.name], field.type) for field in schema.LENGTHS_WITH_SPANS]
    return pa.Table.from_arrays(arrays, schema=schema.LENGTHS_WITH_SPANS)


def _merged(
    parts: Sequence[dict[str, pa.Array]], counted: Counted, num: int
) -> dict[str, pa.Array]:
    """Return the columns of a batch whose records were counted in up to two ways."""
    if not parts:
        return count_columns(counts_of([]), [], num)
    columns = parts[-1]
    for own, (_, numbers) in zip(parts[:-1], counted[:-1], strict=True):
        is_own = np.zeros(num, bool)
        is_own[numbers] = True
        mask = pa.array(is_own)
        columns = {name: pc.if_else(mask, own[name], columns[name]) for name in columns}
    return columns


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _content_columns(parsed: Sequence[ExaminedRecord]) -> dict[str, list[int | None]]:
    known = [None if item.error else item.conversation for item in parsed]
    media = [None if c is None else [medium.kind for medium in c.media] for c in known]
    return {
        "num_turns": [None if c is None else len(c.turns) for c in known],
        "num_images": [None if kinds is None else kinds.count("image") for kinds in media],
        "num_videos": [None if kinds is None else kinds.count("video") for kinds in media],
    }


def _status_columns(
    parsed: Sequence[ExaminedRecord], counter: RecordCounter
) -> dict[str, list[Any]]:
    errors = [item.error for item in parsed]
    return {
        "status": ["rejected" if error else "ok" for error in errors],
        "reason": [error.reason if error else None for error in errors],
        "detail": [
            _printable(item.error.detail) if item.error else _note(item, counter) for item in parsed
        ],
    }


def _note(item: ExaminedRecord, counter: RecordCounter) -> str | None:
    """Return what is to be said of a record that is all right."""
    talk = item.conversation
    if talk is None:
        return None
    notes = [BUILT] if item.measured is not None and counter.encoder is None else []
    if counter.files is not None:
        notes += counter.files.template_of(talk).changes(talk)
    if talk.has_literal:
        notes.append("placeholders read as text: the record has no media")
    return "; ".join(notes) or None


def _printable(text: str) -> str:
    """`text` as Parquet can hold it: valid Unicode, and short."""
    text = text if len(text) <= 500 else text[:497] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def count_columns(counts: Counts, numbers: Sequence[int], num_rows: int) -> dict[str, pa.Array]:
    """Return the counted columns of a table.

    Args:
        counts: of some of the table's rows.
        numbers: the row that each count is of, ascending.
        num_rows: rows of the table; rows without a count, or with an error, become null.
    """
    rows = np.array(numbers, np.int64)
    good = np.array([number not in counts.errors for number in range(len(rows))], bool)
    taken = np.full(num_rows, -1, np.int64)
    taken[rows[good]] = np.flatnonzero(good)
    index = pa.array(taken, mask=taken < 0)
    columns = {
        name: _known(getattr(counts, name)).take(index)
        for name in ("text_tokens", "image_tokens", "video_tokens", "audio_tokens")
        + ("length", "label_tokens", "vision_patches", "vision_cost")
    }
    method = pa.array(counts.method, mask=counts.method < 0)
    methods = pa.DictionaryArray.from_arrays(method, pa.array(METHODS))
    return columns | {
        "length": columns["length"].fill_null(0),
        "media": _media(counts.media).take(index),
        "label_spans": _label_spans(counts.spans, len(rows)).take(index),
        "method": methods.cast(pa.string()).take(index),
    }


def _known(values: Int64s) -> pa.Array:
    return pa.array(values, mask=values == UNKNOWN)


def _label_spans(spans: Spans, num_samples: int) -> pa.Array:
    """The list of spans of each sample; null where they are not told."""
    sizes = np.bincount(spans.sample, minlength=num_samples)
    ends = [pa.array(values.astype(np.int32)) for values in (spans.start, spans.stop)]
    structs = pa.StructArray.from_arrays(ends, fields=list(schema.LABEL_SPANS.value_type))
    return _lists(np.cumsum(sizes), structs, schema.LABEL_SPANS, mask=pa.array(sizes == 0))


def _media(media: MediaColumns) -> pa.Array:
    """The list of media of each sample."""
    kinds = pa.DictionaryArray.from_arrays(pa.array(media.kind), pa.array(KINDS))
    grid = dict(zip("thw", map(_known, media.grid.T), strict=True))
    values = grid | {name: _known(getattr(media, name)) for name in ("tokens", "patches", "at")}
    values["kind"] = kinds.cast(pa.string())
    fields = list(schema.MEDIA.value_type)
    # What does not fit is of samples with too many tokens, which become null.
    arrays = [values[field.name].cast(field.type, safe=False) for field in fields]
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return _lists(media.offsets[1:], structs, schema.MEDIA)


def _lists(ends: Int64s, values: pa.Array, kind: pa.DataType, **more: Any) -> pa.Array:
    offsets = pa.array(np.append(0, ends).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=kind, **more)
