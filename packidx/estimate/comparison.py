"""What is compared on the data's own records: text backends, and counts with the processor's."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import BadRecord, LimitError, MissingExtraError
from packidx.estimate.counter import RecordCounter, ShardContext, examine, raw_records
from packidx.estimate.job import JobShard
from packidx.io import urls
from packidx.processor.counts import TEXT, Compared, sample_kind
from packidx.processor.text.encoder import LITTLE, NUM_TEXTS, choose_backend, reference_backend
from packidx.records.containers.base import RawRecord, RecordRange
from packidx.records.conversation import Conversation, MediaInfo
from packidx.records.dialects.parse import parse
from packidx.records.media.opener import is_remote, open_media
from packidx.software import installed

NUM_RECORDS = 16
"""Records of the data that are compared, at most half of them with media."""

_TEXT_RANGES = 64
_NUM_RANGES, _PER_RANGE = 16, 32
_MAX_IMAGES, _MAX_PIXELS = 4, 16_000_000  # the real processor decodes them
_MAX_CLIP_PIXELS, _MAX_SECONDS = 1 << 26, 120


def compared_with() -> str | None:
    """Return what counts would be compared with here, as `Compared.by` has it."""
    release = installed("transformers")
    return None if release is None else f"transformers {release}"


def compare_processor(counter: RecordCounter, shards: Sequence[JobShard]) -> Compared | None:
    """Return what came of comparing the counter with the real processor; None where it renders no
    text.

    Raises:
        SourceError: a shard cannot be read.
    """
    processor = counter.files
    if processor is None or counter.counter.text is None:
        return None
    if installed("transformers") is None:
        reasons = ("transformers was not installed", processor.doubt)
        return Compared(reason=": ".join(filter(None, reasons)))
    if processor.doubt is not None:
        return Compared(reason=processor.doubt)
    from packidx.encode.proof import judged

    candidates = _candidates(counter, shards)
    kinds = {TEXT, *(candidate.kind for candidate in candidates)}
    return judged(processor, kinds, _talks(candidates))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A record of the data that may be compared."""

    raw: RawRecord
    shard: ShardContext
    kind: str
    characters: frozenset[str]
    num_characters: int


def _candidates(counter: RecordCounter, shards: Sequence[JobShard]) -> list[_Candidate]:
    """Records from all over the data, none from object stores."""
    local = [shard for shard in shards if not urls.is_url(shard.context.path)]
    candidates = []
    for shard, record_range in _spread_ranges(local, _NUM_RANGES):
        raws = raw_records(shard, record_range, counter.transform)
        for raw in itertools.islice(raws, _PER_RANGE):
            with contextlib.suppress(BadRecord, RecursionError):
                talk = None if isinstance(raw.record, BadRecord) else parse(raw.record)
                if talk is None or talk.input_ids is not None:
                    continue
                parts = (part for turn in talk.turns for part in turn.parts)
                texts = [part for part in parts if isinstance(part, str)]
                characters = frozenset().union(*texts)
                size = sum(map(len, texts))
                candidates.append(_Candidate(raw, shard, sample_kind(talk), characters, size))
    return candidates


def _by_interest(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The first of each kind, the longest, the shortest, then those with the rarest characters."""
    common = Counter(char for candidate in candidates for char in candidate.characters)
    firsts = {candidate.kind: candidate for candidate in reversed(candidates)}
    by_size = sorted(candidates, key=lambda each: each.num_characters)
    rare = sorted(
        candidates, key=lambda each: min((common[char] for char in each.characters), default=0)
    )
    order = [*firsts.values(), *by_size[-1:], *by_size[:1], *rare]
    return list({id(each): each for each in order}.values())


def _talks(candidates: Sequence[_Candidate]) -> list[Conversation]:
    """The records that are compared, media opened."""
    talks: list[Conversation] = []
    num_media = 0
    for candidate in _by_interest(candidates):
        if len(talks) == NUM_RECORDS:
            break
        if candidate.kind.startswith(TEXT) or num_media < NUM_RECORDS // 2:
            talk = _opened(candidate.raw, candidate.shard)
            if talk is not None:
                talks.append(talk)
                num_media += bool(talk.media)
    return talks


def _opened(raw: RawRecord, shard: ShardContext) -> Conversation | None:
    """The record's conversation with its images opened; None where it is not to be had easily."""
    from packidx.encode.media import info_of

    if isinstance(raw.record, BadRecord):
        return None
    try:
        talk = parse(raw.record)
        if talk.input_ids is not None or len(talk.media) > _MAX_IMAGES:
            return None
        if any(is_remote(medium, shard.root) for medium in talk.media):
            return None
        if talk.media:
            talk = parse(open_media(raw.record, shard.root))
        known = [info_of(medium) for medium in talk.media]
    except (BadRecord, MissingExtraError, OSError, MemoryError, RecursionError):
        return None
    return None if any(map(_is_large, known)) else talk


def _is_large(info: MediaInfo) -> bool:
    if info.num_samples:
        return info.num_samples > _MAX_SECONDS * info.sampling_rate
    most = _MAX_PIXELS if info.num_frames == 1 else _MAX_CLIP_PIXELS
    return info.num_frames * info.height * info.width > most


def choose_text_backend(
    counter: RecordCounter,
    shards: Sequence[JobShard],
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
    if wanted is None and sum(shard.stated.bytes for shard in shards) < LITTLE:
        return reference_backend("little data")
    texts: list[str] = []
    if wanted != "tokenizers":
        texts = list(itertools.islice(_texts(counter, shards), NUM_TEXTS))
    return choose_backend(text, texts, wanted)


def _texts(counter: RecordCounter, shards: Sequence[JobShard]) -> Iterator[str]:
    """Yield what is tokenized of records from all over the data, at most `NUM_TEXTS` or so."""
    ranges = _spread_ranges(shards, _TEXT_RANGES)
    for shard, record_range in ranges:
        raws = raw_records(shard, record_range, counter.transform)
        for raw in itertools.islice(raws, -(-NUM_TEXTS // len(ranges))):
            item = examine(raw, shard, 0, counter)
            if item.error is not None or item.conversation is None or item.conversation.input_ids:
                continue
            media = counter.counter.count_media([item.conversation], [item.infos])
            try:
                yield counter.counter.expand(item.conversation, 0, media).text
            except (BadRecord, LimitError, MemoryError):  # told when it is counted, with its place
                continue  # it becomes a rejected row


def _spread_ranges(shards: Sequence[JobShard], most: int) -> list[tuple[ShardContext, RecordRange]]:
    """At most so many ranges, from all over the shards."""
    ranges = [(shard.context, part) for shard in shards for part in shard.ranges]
    return ranges[:: max(1, -(-len(ranges) // most))]
