"""Tasks: which ranges of which shards make a part file, and all parts made, here or by workers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import to_builtins

from packidx.arrays import Int64s
from packidx.digests import canonical_json, digest_parts
from packidx.errors import SourceError
from packidx.estimate.counter import (
    BATCH,
    ExaminedRecord,
    JobShard,
    RecordCounter,
    count_rows,
    examine_batch,
)
from packidx.estimate.job import EstimateJob, table_recipe, without_plan_options
from packidx.estimate.parts import BUILT, OldRows, Part, TaskRows, read_part, write_part
from packidx.estimate.user_encoder import Measured
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import RecordRange
from packidx.format.parquet import as_arrow
from packidx.format.schema import METHODS
from packidx.io import urls
from packidx.processor.counts import UNKNOWN, Counts, MediaColumns, Spans
from packidx.processor.kinds import KINDS
from packidx.records.containers.base import TASK_BYTES, TASK_RECORDS
from packidx.records.containers.registry import get_container
from packidx.run.workers import Progress, Workers

_TABLES = 64
"""Tables that are joined at a time: one takes 50 kB of Arrow's objects, however few its rows."""


class Task(NamedTuple):
    """A range of a shard that is counted, and where its rows stand in the table."""

    shard: JobShard
    range: RecordRange
    first_id: int
    """sample_id of its first row."""
    key: str
    """Digest of all that decides its rows, except their place in the table."""
    old: OldRows | None
    """Rows of the task, if they are there."""


class PartPlan(NamedTuple):
    """The work of making one part."""

    name: str
    """Name of the file up to its digest."""
    tasks: list[Task]
    """Tasks of its rows, in order."""

    @property
    def counted(self) -> list[Task]:
        """The tasks of which no rows are reused."""
        return [task for task in self.tasks if task.old is None]


def _list_tasks(
    job: EstimateJob, draft: LengthsManifest, rows: Mapping[str, OldRows]
) -> Iterator[Task]:
    """Yield the tasks of a job in order."""
    versions = [schema.FORMAT_VERSION, str(schema.LENGTHS_WITH_SPANS)]
    head = digest_parts(canonical_json([table_recipe(draft), job.counter.fingerprints, versions]))
    first_id = 0
    for shard in job.shards:
        root, stated, layout = shard.root, shard.stated, without_plan_options(shard.file.layout)
        places = [shard.file.path, root.folder, *root.elsewhere]
        named = [shard.name, *map(urls.to_absolute, places)]
        content = [stated.container, stated.fingerprint, stated.rows]
        if not get_container(stated.container).hashes_all:
            content += [stated.bytes, stated.version]
        shared = digest_parts(canonical_json([head, named, layout.to_json(), content]))
        own = shard.of_task()
        for part in stated.ranges:
            drawn = None if job.counter.transform is None else first_id  # it draws by sample ids
            key = digest_parts(canonical_json([shared, to_builtins(part), drawn]))[:32]
            yield Task(own, part, first_id, key, rows.get(key))
            first_id += part.num_records


def plan_parts(
    job: EstimateJob, draft: LengthsManifest, rows: Mapping[str, OldRows]
) -> list[PartPlan]:
    """Return at least one part: tasks in order, small ones together until about `TASK_BYTES`.

    Args:
        draft: the manifest before anything is counted.
        rows: that are there, by the keys of their tasks.
    """
    groups: list[list[Task]] = [[]]
    nbytes, num_records = 0, 0
    for task in _list_tasks(job, draft, rows):
        nbytes += task.range.nbytes
        num_records += task.range.num_records
        is_full = nbytes > TASK_BYTES * 3 // 2 or num_records > TASK_RECORDS * 3 // 2
        if groups[-1] and is_full:
            groups.append([])
            nbytes, num_records = task.range.nbytes, task.range.num_records
        groups[-1].append(task)
    plans = []
    for number, tasks in enumerate(groups):
        stated = [
            [task.key, task.shard.number, task.shard.file.source, task.first_id] for task in tasks
        ]
        name = f"part-{number:05d}-{digest_parts(canonical_json(stated))[:16]}"
        plans.append(PartPlan(name, tasks))
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
    total, done = sum(shard.stated.rows for shard in job.shards), 0
    parts: list[Part] = []

    def advance_progress(records: int) -> None:
        nonlocal done
        done += records
        progress("count", done, total)

    # Processes that only copy would take longer to start.
    if is_here := not workers.takes(sum(bool(plan.counted) for plan in plans)):
        workers, job.counter.advance = Workers(1), advance_progress
    call, setup = functools.partial(make_part, folder=folder), job.counter.in_workers()
    for part in workers.map(call, plans, setup, here=lambda: job.counter):
        parts.append(part)
        if not is_here:
            advance_progress(part.file.rows)
    return parts


def make_part(plan: PartPlan, counter: RecordCounter, folder: str) -> Part:
    """Count the records of a part, or reuse their rows, and write its file.

    Raises:
        SourceError: a shard cannot be read or is no longer what was scanned.
        OSError: the part cannot be written.
    """
    tables, known = [schema.LENGTHS_WITH_SPANS.empty_table()], []
    for task in plan.tasks:
        rows, own = _count_task(task, counter) if task.old is None else _reuse_task(task, task.old)
        if task.old is not None:
            counter.advance(task.range.num_records)
        tables.append(rows)
        if len(tables) > _TABLES:
            tables = [pa.concat_tables(tables).combine_chunks()]
        known.append(own)
    return write_part(folder, plan.name, pa.concat_tables(tables).combine_chunks(), known)


def _reuse_task(task: Task, old: OldRows) -> tuple[pa.Table, TaskRows]:
    """Return the rows of a task as a count would make them, and what is known of them."""
    num, shard, first = task.range.num_records, task.shard, task.first_id
    rows = read_part(old.file).slice(old.first, num)
    values = {
        "sample_id": as_arrow(np.arange(first, first + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.file.source, pa.string()), num),
    }
    for name, column in values.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, schema.LENGTHS_WITH_SPANS.field(name), column)
    return rows, old.rows._replace(key=task.key)


def _count_task(task: Task, counter: RecordCounter) -> tuple[pa.Table, TaskRows]:
    """Count the records of a task; return its rows, and what is known of them."""
    tables, shard, part = [schema.LENGTHS_WITH_SPANS.empty_table()], task.shard, task.range
    shift, transform, comparer = task.first_id - part.first_row, counter.transform, counter.comparer
    change = None if transform is None else lambda record, row: transform.apply(record, row + shift)
    columns = dict[str, str]()
    read = shard.read(part, None if counter.encoder else columns, change)
    if comparer is not None:
        comparer.kinds = {}
    while rows := examine_batch(itertools.islice(read, BATCH), shard, shift, counter):
        tables.append(_make_table(shard, rows, counter))
        counter.advance(len(rows))
    counted = pa.concat_tables(tables)
    if counted.num_rows != part.num_records:
        raise SourceError(
            f"{shard.file.path} changed while it was counted: {part.num_records} records before "
            f"and {counted.num_rows} now between bytes {part.start} and {part.end}; start again"
        )
    kinds = {} if comparer is None else comparer.kinds
    return counted, TaskRows(task.key, counted.num_rows, columns, kinds)


def _make_table(
    shard: JobShard, rows: Sequence[ExaminedRecord], counter: RecordCounter
) -> pa.Table:
    num = len(rows)
    counts, numbers = count_rows(rows, counter)
    built = ((n, item.measured) for n, item in enumerate(rows) if item.error is None)
    measured = {number: own for number, own in built if own is not None}
    counted = count_columns(counts, numbers, num, measured)
    errors = [item.error for item in rows]
    talks = [None if item.error else item.conversation for item in rows]
    kinds = [None if talk is None else [medium.kind for medium in talk.media] for talk in talks]
    columns: dict[str, Any] = {
        **dict(zip(counted.column_names, counted.columns, strict=True)),
        "sample_id": [item.sample_id for item in rows],
        "source": [shard.file.source] * num,
        "key": [f"{shard.name}#{item.row}" if item.key is None else item.key for item in rows],
        "shard": [shard.number] * num,
        "row": [item.row for item in rows],
        "offset": [item.offset for item in rows],
        "nbytes": [item.nbytes for item in rows],
        "num_turns": [talk and len(talk.turns) for talk in talks],
        "num_images": [None if of is None else of.count("image") for of in kinds],
        "num_videos": [None if of is None else of.count("video") for of in kinds],
        "status": ["rejected" if error else "ok" for error in errors],
        "reason": [error and error.reason for error in errors],
        "detail": [
            _to_printable(item.error.detail) if item.error else _make_note(item, counter)
            for item in rows
        ],
    }
    return pa.Table.from_pydict(columns, schema=schema.LENGTHS_WITH_SPANS)


def _make_note(item: ExaminedRecord, counter: RecordCounter) -> str | None:
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


def _to_printable(text: str) -> str:
    """`text` as Parquet can hold it: valid Unicode, and short."""
    text = text if len(text) <= 500 else text[:497] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def count_columns(
    counts: Counts,
    numbers: Sequence[int],
    num_rows: int,
    measured: Mapping[int, Measured] = MappingProxyType({}),
) -> pa.Table:
    """Return the counted columns of a table; rows without a count, or with an error, are null.

    Args:
        counts: of some rows.
        numbers: the row that each of `counts` is of.
        num_rows: rows of the table.
        measured: counts of other rows.
    """
    good = [at for at in range(len(numbers)) if at not in counts.errors]
    table = _to_columns(counts).take(pa.array(good, pa.int64())).cast(schema.COUNTED)
    if measured:
        more = pa.Table.from_pylist([*measured.values()], schema=schema.COUNTED)
        table = pa.concat_tables([table, more])
    taken = np.full(num_rows, -1, np.int64)
    taken[[numbers[at] for at in good] + [*measured]] = np.arange(table.num_rows)
    table = table.take(pa.array(taken, mask=taken < 0))
    at = table.schema.get_field_index("length")
    return table.set_column(at, schema.COUNTED.field("length"), table["length"].fill_null(0))


def _to_columns(counts: Counts) -> pa.Table:
    """Return counts as columns; numbers that fit no column are of samples with errors."""
    method = pa.array(counts.method, mask=counts.method < 0)
    columns = {
        "media": _media_column(counts.media),
        "label_spans": _label_spans(counts.spans, len(counts.length)),
        "method": pa.DictionaryArray.from_arrays(method, pa.array(METHODS)).cast(pa.string()),
    }
    names = schema.COUNTED.names
    known = {name: _null_unknown(getattr(counts, name)) for name in names if name not in columns}
    return pa.table(known | columns).select(names)


def _null_unknown(values: Int64s) -> pa.Array:
    return pa.array(values, mask=values == UNKNOWN)


def _label_spans(spans: Spans, num_samples: int) -> pa.Array:
    """The list of spans of each sample; null if they are not known."""
    sizes = np.bincount(spans.sample, minlength=num_samples)
    ends = [pa.array(values.astype(np.int32)) for values in (spans.start, spans.stop)]
    structs = pa.StructArray.from_arrays(ends, fields=list(schema.LABEL_SPANS.value_type))
    return _list_column(np.cumsum(sizes), structs, schema.LABEL_SPANS, mask=pa.array(sizes == 0))


def _media_column(media: MediaColumns) -> pa.Array:
    """The list of media of each sample."""
    kinds = pa.DictionaryArray.from_arrays(pa.array(media.kind), pa.array(KINDS))
    grid = dict(zip("thw", map(_null_unknown, media.grid.T), strict=True))
    values = grid | {
        name: _null_unknown(getattr(media, name)) for name in ("tokens", "patches", "at")
    }
    values["kind"] = kinds.cast(pa.string())
    fields = list(schema.MEDIA.value_type)
    # What does not fit is of samples with too many tokens, which are left out.
    arrays = [values[field.name].cast(field.type, safe=False) for field in fields]
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return _list_column(media.offsets[1:], structs, schema.MEDIA)


def _list_column(ends: Int64s, values: pa.Array, kind: pa.DataType, **more: Any) -> pa.Array:
    offsets = pa.array(np.append(0, ends).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=kind, **more)
