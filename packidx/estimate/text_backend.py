"""Choosing the text backend, on the data's own text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from packidx.errors import BadRecord, LimitError
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import ShardContext, examine, raw_records, spread_ranges
from packidx.processor.text.backends import choose_backend, reference_backend
from packidx.records.containers.base import RecordRange, ShardScan

NUM_TEXTS = 512
"""Texts that both backends tokenize before the faster one is trusted."""

_NUM_RANGES = 64

_LITTLE = 1 << 20
"""Bytes of data that `tokenizers` has tokenized before `gigatoken` is loaded."""


def choose(
    counter: RecordCounter,
    shards: Sequence[ShardContext],
    scans: Sequence[ShardScan],
    wanted: str | None,
) -> tuple[str, dict[str, Any] | None]:
    """The backend, and the record of why; the first that serves and no record without a tokenizer.

    Raises:
        SourceError: a shard cannot be read.
        MismatchError: the backend that is wanted does not serve.
    """
    text = counter.counter.text
    if text is None:
        return "tokenizers", None
    if wanted is None and sum(scan.nbytes for scan in scans) < _LITTLE:
        return reference_backend("little data")
    texts: list[str] = []
    if wanted != "tokenizers":
        texts = list(itertools.islice(_texts(counter, shards, scans), NUM_TEXTS))
    return choose_backend(text, texts, wanted)


def _texts(
    counter: RecordCounter, shards: Sequence[ShardContext], scans: Sequence[ShardScan]
) -> Iterator[str]:
    """What is tokenized of records from all over the data, at most `NUM_TEXTS` or so."""
    ranges = spread_ranges(shards, scans, _NUM_RANGES)
    for shard, record_range in ranges:
        yield from _range_texts(counter, shard, record_range, -(-NUM_TEXTS // len(ranges)))


def _range_texts(
    counter: RecordCounter, shard: ShardContext, record_range: RecordRange, limit: int
) -> Iterator[str]:
    for raw in itertools.islice(raw_records(shard, record_range), limit):
        item = examine(raw, shard, 0, counter)
        if item.error is not None or item.conversation is None or item.conversation.input_ids:
            continue
        media = counter.counter.count_media([item.conversation], [item.infos])
        try:
            yield counter.counter.expand(item.conversation, 0, media).text
        except (BadRecord, LimitError, MemoryError):  # told when it is counted, with its place
            continue  # it becomes a rejected row
