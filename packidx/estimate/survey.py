"""Decisions on a sample of the data: its leftovers, the engine that tokenizes, the kinds of records
that rules count, and whether the transform is random."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from packidx.errors import BadRecord, OptionError, SourceError
from packidx.estimate.counter import (
    ExaminedRecord,
    RecordCounter,
    ShardContext,
    examine_batch,
    read_shard,
)
from packidx.estimate.job import JobShard
from packidx.format.manifest import Compared
from packidx.processor.text.gigatoken import LITTLE, NUM_TEXTS, choose_engine
from packidx.records.containers.base import RecordRange
from packidx.records.containers.registry import container
from packidx.records.leftovers import NOT_USED
from packidx.records.read import ReadRecord
from packidx.user_code import Transform

_NUM_RANGES = 16
_LOOKED_AT = 1024
"""Records of a source that are looked at for its stated columns before it is counted."""
_NUM_FIRST = 1000
"""Records of each source that are looked through for leftovers."""


class Survey(NamedTuple):
    """Decisions on a sample of the data."""

    text_engine: dict[str, Any] | None = None
    """The manifest's record of the text engine; None without a tokenizer."""
    compared: Compared | None = None
    """Kinds that were compared with the real processor; None without a tokenizer."""
    is_random: bool = False
    """True if the transform makes different records of two copies of one."""


def survey(counter: RecordCounter, shards: Sequence[JobShard]) -> Survey:
    """Choose the text engine on records from all over the data, and compare their kinds.

    Args:
        counter: gets the engine, and the kinds that were compared.

    Raises:
        SourceError: a shard cannot be read, or records have leftovers.
    """
    if counter.encoder is None:
        _refuse_leftovers(shards, counter.transform)
    text, comparer = counter.counter.text, counter.comparer
    twice = None if counter.transform is None else _Twice(counter.transform)
    if comparer is None and twice is None:
        return Survey()
    texts = []
    for shard, raws in _batches(shards, twice):
        if comparer is None:
            deque(raws, 0)
        else:
            items = examine_batch(raws, shard, 0, counter, only_compare=True)
            texts += [part for item in items if (part := _text(counter, item))]
    is_random = twice is not None and twice.is_random
    if text is None or comparer is None:
        return Survey(is_random=is_random)
    is_little = sum(each.stated.bytes for each in shards) < LITTLE
    text.fast, engine = choose_engine(text.tokenizer, [] if is_little else texts)
    comparer.compared = comparer.close()
    return Survey(engine, comparer.compared, is_random)


def _by_source(shards: Sequence[JobShard]) -> dict[str, list[tuple[ShardContext, RecordRange]]]:
    """Return the ranges of each source."""
    places: dict[str, list[tuple[ShardContext, RecordRange]]] = {}
    for shard in shards:
        own = places.setdefault(shard.context.source, [])
        own += [(shard.context, part) for part in shard.ranges]
    return places


def _refuse_leftovers(shards: Sequence[JobShard], transform: Transform | None) -> None:
    """Raise a SourceError that names the leftovers of all sources, in their first records."""
    left: dict[str, list[str]] = {}
    change = None if transform is None else transform.apply
    for source, places in _by_source(shards).items():
        uses = dict[str, str]()
        read = (record for place in places for record in read_shard(*place, uses, change))
        deque(itertools.islice(read, _NUM_FIRST), 0)
        if names := sorted(name for name, use in uses.items() if use == NOT_USED):
            left[source] = names
    if left:
        stated = "; ".join(f"{source}: {', '.join(names)}" for source, names in left.items())
        ignored = ",".join(sorted({name for names in left.values() for name in names}))
        raise SourceError(
            f"nothing reads these columns or keys ({stated}): add --ignore {ignored} to leave them "
            "out, or see docs/data.md for how to use them"
        )


@dataclass
class _Twice:
    """A transform that notes whether two copies of a record become different ones."""

    transform: Transform
    is_random: bool = False

    def apply(self, record: dict[str, Any], sample_id: int) -> dict[str, Any]:
        """See `Transform.apply`."""
        if not self.is_random:
            one = self.transform.apply(copy.deepcopy(record), sample_id, copy=1)
            other = self.transform.apply(copy.deepcopy(record), sample_id)
            self.is_random = repr(one) != repr(other)
        return self.transform.apply(record, sample_id)


def _batches(
    shards: Sequence[JobShard], transform: _Twice | None
) -> Iterator[tuple[ShardContext, Iterator[ReadRecord]]]:
    """Yield at most `NUM_TEXTS` records from all over the data."""
    ranges = [(shard.context, part) for shard in shards for part in shard.ranges]
    chosen = ranges[:: max(1, -(-len(ranges) // _NUM_RANGES))]
    change = None if transform is None else transform.apply
    for shard, part in chosen:
        read = read_shard(shard, part, change=change)
        yield shard, itertools.islice(read, -(-NUM_TEXTS // len(chosen)))


def _text(counter: RecordCounter, item: ExaminedRecord) -> str | None:
    """Return what is tokenized of a record; None if it becomes a rejected row."""
    talk = item.conversation
    if item.error is not None or talk is None or talk.input_ids is not None:
        return None
    media = counter.counter.count_media([talk], [item.infos])
    try:
        return counter.counter.expand(talk, 0, media).text
    except (BadRecord, MemoryError):  # raised again where the record is counted
        return None


def refuse_absent_columns(shards: Sequence[JobShard]) -> None:
    """Raise an OptionError if a column is stated of a source and none of its records has it.

    Records from all over the source are looked at, all of them if they are few.
    """
    named = [shard for shard in shards if shard.context.layout.columns]
    for name, places in _by_source(named).items():
        chosen = places[:: max(1, len(places) // _NUM_RANGES)]
        seen: set[str] = set()
        for context, part in chosen:
            raws = container(context.container, context.layout.delimiter).read(context.path, part)
            for raw in itertools.islice(raws, -(-_LOOKED_AT // len(chosen))):
                seen.update(raw.data if isinstance(raw.data, dict) else ())
                for member in raw.members or ():
                    seen.update((member, ending := member[len(raw.key or "") :], ending[1:]))
        for key, column in places[0][0].layout.columns.items() if seen else ():
            if seen.isdisjoint((column, *column.split(","))):
                raise OptionError(
                    f"no record of {name} has a column {column!r}, which is stated to hold its "
                    f"{key}: they have {', '.join(sorted(seen))[:300]}"
                )
