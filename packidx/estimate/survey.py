"""Decisions on a sample of the data: its leftovers, the engine that tokenizes, the kinds of records
that rules count, and whether the transform is random."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from typing import Any

from packidx.errors import BadRecord, OptionError, SourceError
from packidx.estimate.counter import (
    ExaminedRecord,
    JobShard,
    RecordCounter,
    examine_batch,
)
from packidx.estimate.job import EstimateJob
from packidx.format.manifest import RecordRange
from packidx.processor.text.gigatoken import LITTLE, NUM_TEXTS, choose_engine
from packidx.records.containers.registry import container
from packidx.records.read import NOT_USED, RecordReader

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
            raws = container(file.container, layout.delimiter).read(file.path, part)
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
