"""One record parsed, its media sized, counted."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.errors import BadRecord, LimitError, MismatchError
from packidx.estimate.counter import ExaminedRecord, RecordCounter, without_references
from packidx.io import storage
from packidx.processor.counter import OUT_OF_MEMORY
from packidx.processor.counts import Counts
from packidx.records import shards
from packidx.records.containers.base import RawRecord, RecordRange
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.conversation import Media, MediaInfo
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import record_key
from packidx.records.layout import DEFAULT, Layout
from packidx.records.media.audio import media_sound
from packidx.records.media.looked_at import LookedAt
from packidx.records.media.opener import check_reference, is_remote, media_size, open_media
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import refs_of
from packidx.records.media.video import media_info
from packidx.user_code.transform import Transform

BATCH = 512
"""Records that are tokenised together."""

_MAX_TOKENS = 2**31 - 1  # the columns are int32


@dataclass(frozen=True, slots=True)
class ShardContext:
    """What the rows of one shard have in common."""

    number: int
    name: str
    """File name, or the shortest path suffix that tells it from the table's other shards."""
    path: str
    source: str
    root: MediaRoot
    """Where its records' media may lie."""
    sized: bool
    """Whether sizes matter where token counts are stated (that is, a processor is given)."""
    container: str = JSONL
    layout: Layout = DEFAULT
    has_media: bool = True
    """Whether records of its source may have media: only where none has is a placeholder text."""
    looked_at: LookedAt | None = None
    """Is told of every reference to media before it is followed."""


def raw_records(
    shard: ShardContext,
    record_range: RecordRange,
    transform: Transform | None = None,
    shift: int = 0,
    columns: dict[str, str] | None = None,
) -> Iterator[RawRecord]:
    """The records of one range of a shard, in the standard names.

    Args:
        transform: what they are before they are laid out, if anything else than they are.
        shift: how much a record's sample id is more than its row.
        columns: as of `shards.read_records`.

    Raises:
        SourceError: the shard cannot be read.
    """
    change = None if transform is None else changes_of(transform, shift)
    kind, layout = shard.container, shard.layout
    return shards.read_records(shard.path, record_range, kind, layout, change, columns)


def changes_of(transform: Transform, shift: int) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """`transform` of records by their row; see `raw_records`."""
    return lambda record, row: transform.apply(record, row + shift)


def name_in_shard(raw: RawRecord) -> str | None:
    """What a record is called by its shard or by itself; None where it has no name."""
    if raw.key is not None or isinstance(raw.record, BadRecord):
        return raw.key or None
    return record_key(raw.record)


def examine_batch(
    raws: Iterable[RawRecord], shard: ShardContext, shift: int, counter: RecordCounter
) -> list[ExaminedRecord]:
    """`examine` of each record, or side of a pair, numbered `shift` more than in its shard.

    Sizes that an object store is asked for are asked for together: what takes time is to wait.
    """
    rows = [_begun(raw, shard, raw.number + shift, counter) for raw in raws]
    waiting = [item for item in rows if item.waits]
    if waiting:
        with warnings.catch_warnings():
            # Filters belong to all threads: each would take away and bring back the others'.
            warnings.simplefilter("ignore")
            storage.overlapped(functools.partial(_look, shard=shard), waiting)
    return rows


def examine(
    raw: RawRecord, shard: ShardContext, sample_id: int, counter: RecordCounter
) -> ExaminedRecord:
    """All that one record says; what is wrong with it is in the row's `error`."""
    item = _begun(raw, shard, sample_id, counter)
    if item.waits:
        _look(item, shard)
    return item


def _begun(
    raw: RawRecord, shard: ShardContext, sample_id: int, counter: RecordCounter
) -> ExaminedRecord:
    """`examine` as far as no object store need be asked for sizes."""
    item = ExaminedRecord(sample_id=sample_id, row=raw.row, offset=raw.offset, nbytes=raw.nbytes)
    item.key, item.pair = name_in_shard(raw), raw.pair
    if isinstance(raw.record, BadRecord):
        item.error = raw.record
        return item
    with _errors_kept(item):
        if counter.opens_media:
            opened = open_media(raw.record, shard.root, looked_at=shard.looked_at)
            counter.measure(opened, item)
            if item.measured is None:
                item.conversation = parse(opened, has_media=shard.has_media)
                item.infos = tuple(_info(medium, shard) for medium in item.conversation.media)
            if item.conversation is not None:
                item.conversation = without_references(item.conversation)
        else:
            item.conversation = parse(raw.record, has_media=shard.has_media)
            item.waits = any(is_remote(medium, shard.root) for medium in item.conversation.media)
            if not item.waits:
                _look(item, shard)
    return item


def _look(item: ExaminedRecord, shard: ShardContext) -> None:
    """Find out the sizes of a record's media."""
    item.waits = False
    if item.conversation is None:
        return
    with _errors_kept(item):
        if shard.looked_at is not None:
            for medium in item.conversation.media:
                for ref in refs_of(medium):
                    shard.looked_at.note(ref, shard.root)
        item.infos = tuple(_info(medium, shard) for medium in item.conversation.media)
        if any(not isinstance(medium.ref, str) for medium in item.conversation.media):
            # Content of files: a batch must not hold that of all its records.
            item.conversation = without_references(item.conversation)


@contextlib.contextmanager
def _errors_kept(item: ExaminedRecord) -> Iterator[None]:
    """What is wrong with a record is kept in it; memory that ran out is no record's error."""
    try:
        yield
    except BadRecord as error:
        item.conversation, item.error = None, error
    except RecursionError as error:
        text = f"the record is too large: {type(error).__name__}"
        item.conversation, item.error = None, BadRecord("bad_record", text)
    except MemoryError:
        raise _at(item, OUT_OF_MEMORY) from None


def _at(item: ExaminedRecord, text: str) -> LimitError:
    """The error of time or memory that ran out at a record."""
    named = "" if item.key is None else f" ({item.key})"
    return LimitError(f"record {item.row}{named}: {text}")


def _info(medium: Media, shard: ShardContext) -> MediaInfo | None:
    if medium.tokens is not None and not shard.sized:
        check_reference(medium, shard.root)
        return None
    if medium.kind == "audio" and shard.sized:
        return media_sound(medium, shard.root)
    if medium.kind == "video" and shard.sized:
        return media_info(medium, shard.root)
    size = media_size(medium, shard.root)
    return None if size is None else MediaInfo(*size)


def count_rows(
    parsed: Sequence[ExaminedRecord], counter: RecordCounter
) -> tuple[Counts, list[int]]:
    """The counts of what can be counted, and which of `parsed` they are; the rest gets its error.

    An error that is not a record's own costs no other record.

    Raises:
        LimitError: time or memory ran out, which is no record's error.
    """
    good = [number for number, item in enumerate(parsed) if item.error is None]
    try:
        counts = _run(parsed, good, counter)
    except MismatchError:
        raise
    except LimitError as error:
        raise _at(parsed[good[error.number or 0]], str(error)) from None
    except MemoryError:
        raise _at(parsed[good[0]], f"{OUT_OF_MEMORY}, at one of {len(good)} from it on") from None
    except Exception:
        for number in good:
            try:
                _run(parsed, [number], counter)
            except (LimitError, MemoryError):
                raise _at(parsed[number], OUT_OF_MEMORY) from None
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                parsed[number].error = BadRecord("uncountable", text)
        good = [number for number in good if parsed[number].error is None]
        counts = _run(parsed, good, counter)
    errors = dict(counts.errors)
    for at in np.flatnonzero(counts.length > _MAX_TOKENS).tolist():
        text = f"{counts.length[at]} tokens, over {_MAX_TOKENS}"
        errors.setdefault(at, BadRecord("too_many_tokens", text))
    for at, bad in errors.items():
        parsed[good[at]].error = bad
    counts.errors = errors
    return counts, good


def _run(parsed: Sequence[ExaminedRecord], chosen: Sequence[int], counter: RecordCounter) -> Counts:
    return counter.count([parsed[number] for number in chosen])
