"""Decisions on a sample of the data: which engine tokenizes, and which kinds of records compute."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from packidx.errors import BadRecord, LimitError
from packidx.estimate.compare import Compared
from packidx.estimate.counter import ExaminedRecord, RecordCounter, ShardContext, examine, raw_records
from packidx.estimate.job import JobShard
from packidx.processor.text.gigatoken import LITTLE, NUM_TEXTS, choose_engine
from packidx.records.containers.base import RecordRange

_NUM_RANGES = 16


def survey(
    counter: RecordCounter, shards: Sequence[JobShard], wanted: str | None
) -> tuple[dict[str, Any] | None, Compared | None]:
    """Choose the text engine on records from all over the data, and compare their kinds.

    Args:
        counter: gets the engine, and the kinds that were compared.
        wanted: an engine that was asked for; None takes the faster one that agrees.

    Returns:
        The manifest's record of the engine, and of the comparison; None without a tokenizer.

    Raises:
        SourceError: a shard cannot be read.
        MismatchError: the engine that is wanted gives other ids.
    """
    text, comparer = counter.counter.text, counter.comparer
    if text is None or comparer is None:
        return None, None
    texts = [part for item in _examined(counter, shards) if (part := _text(counter, item))]
    is_little = wanted is None and sum(shard.stated.bytes for shard in shards) < LITTLE
    text.fast, record = choose_engine(text.tokenizer, [] if is_little else texts, wanted)
    comparer.compared = comparer.close()
    return record, comparer.compared


def _examined(counter: RecordCounter, shards: Sequence[JobShard]) -> Iterator[ExaminedRecord]:
    """Yield at most `NUM_TEXTS` records from all over the data."""
    ranges: list[tuple[ShardContext, RecordRange]]
    ranges = [(shard.context, part) for shard in shards for part in shard.ranges]
    chosen = ranges[:: max(1, -(-len(ranges) // _NUM_RANGES))]
    for shard, part in chosen:
        raws = raw_records(shard, part, counter.transform)
        for raw in itertools.islice(raws, -(-NUM_TEXTS // len(chosen))):
            yield examine(raw, shard, counter)


def _text(counter: RecordCounter, item: ExaminedRecord) -> str | None:
    """Return what is tokenized of a record; None if it becomes a rejected row."""
    talk = item.conversation
    if item.error is not None or talk is None or talk.input_ids is not None:
        return None
    media = counter.counter.count_media([talk], [item.infos])
    try:
        return counter.counter.expand(talk, 0, media).text
    except (BadRecord, LimitError, MemoryError):  # raised again where the record is counted
        return None
