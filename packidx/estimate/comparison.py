"""What is compared on the data's own records: text backends, and our counts with the processor's.

Loading transformers and a processor takes seconds. So what was found equal is kept in the cache, by
all files that the real processor may read and the versions of all that built the samples; of a
processor that no family of ours knows also by the records that it was compared on.

<cache>/compared/<digest>.json    what was found equal
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from packidx import digests
from packidx.errors import BadRecord, LimitError, MissingExtraError
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import ShardContext, examine, raw_records
from packidx.io import cache, files, urls
from packidx.processor.counts import NEEDS_TORCHVISION, Compared
from packidx.processor.folder import content_of
from packidx.processor.text.backends import choose_backend, reference_backend
from packidx.records.containers.base import RawRecord, RecordRange, ShardScan
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.dialects.parse import parse
from packidx.records.media.audio import media_sound
from packidx.records.media.opener import is_remote, open_media
from packidx.records.media.paths import MediaRoot
from packidx.records.media.video import media_info
from packidx.software import installed

NUM_RECORDS = 16
"""Records of the data that are compared, at most half of them with images."""

NUM_TEXTS = 512
"""Texts that both backends tokenize before the faster one is trusted."""

_LITTLE = 1 << 20
"""Bytes of data that `tokenizers` has tokenized before `gigatoken` is loaded."""

_TEXT_RANGES = 64
_NUM_RANGES, _PER_RANGE, _FIRST = 8, 8, 2
_MAX_IMAGES, _MAX_PIXELS = 4, 16_000_000  # the real processor decodes them
_MAX_CLIP_PIXELS, _MAX_SECONDS = 1 << 26, 120
_BUILDERS = ("packidx", "transformers", "torch", "torchvision", "tokenizers", "pillow")


def may_be_compared_now(stated: Mapping[str, Any]) -> bool:
    """Whether comparing may come out otherwise here than a manifest has it, by what is installed.

    Args:
        stated: ``encoder.compared``.
    """
    if stated.get("with") == compared_with():
        return False
    return stated.get("reason") != NEEDS_TORCHVISION or installed("torchvision") is not None


def compared_with() -> str | None:
    """What counts would be compared with here, as `Compared.by` has it."""
    release = installed("transformers")
    return None if release is None else f"transformers {release}"


def compare(
    counter: RecordCounter, shards: Sequence[ShardContext], scans: Sequence[ShardScan]
) -> Compared | None:
    """What came of comparing the counter with the real processor; None where it renders no text.

    Raises:
        SourceError: a shard cannot be read.
    """
    processor = counter.files
    if processor is None or counter.counter.text is None:
        return None
    if installed("transformers") is None:
        return Compared(reason="transformers was not installed")
    talks = None if processor.is_known else _talks(counter, shards, scans)
    if talks is None:
        documents = _has_documents(counter, shards, scans)
    else:
        documents = any(talk.is_document for talk in talks)
    path = None
    if processor.folder is not None:
        versions = [f"{name} {installed(name)}" for name in _BUILDERS]
        parts = [processor.fingerprint(), *versions, *content_of(processor.folder)]
        parts += [] if talks is None else map(_words, talks)
        parts += ["documents"] if documents else []
        name = digests.digest(*map(str.encode, parts))
        path = os.path.join(cache.folder(), "compared", f"{name}.json")
        if (kept := _kept(path)) is not None:
            return kept
    if talks is None:
        talks = _talks(counter, shards, scans)
    proof = import_module("packidx.encode.proof")
    compared: Compared = proof.compare(processor, talks, documents)
    is_certain = compared.by is not None or compared.reason == NEEDS_TORCHVISION
    if path is None or not is_certain or (compared.unequal and processor.is_known):
        return compared  # what could not be compared may be another time
    return _keep(path, compared)


def _words(talk: Conversation) -> str:
    """All that a processor's tokens of it depend on."""
    turns = [
        (turn.role, turn.text_as_list, turn.extra)
        + tuple(part if isinstance(part, str) else (part.kind, _facts(part)) for part in turn.parts)
        for turn in talk.turns
    ]
    return repr((turns, talk.tools, *([True] if talk.is_document else [])))


def _has_documents(
    counter: RecordCounter, shards: Sequence[ShardContext], scans: Sequence[ShardScan]
) -> bool:
    """Whether the first records of some source of this machine are documents."""
    firsts = {
        shard.source: (shard, scan.ranges[0])
        for shard, scan in reversed(list(zip(shards, scans, strict=True)))
        if scan.ranges and not urls.is_url(shard.path)
    }
    for shard, record_range in firsts.values():
        for raw in itertools.islice(raw_records(shard, record_range, counter.transform), _FIRST):
            with contextlib.suppress(BadRecord, RecursionError):
                if not isinstance(raw.record, BadRecord) and parse(raw.record).is_document:
                    return True
    return False


def _facts(medium: Media) -> MediaInfo:
    """What is known of a medium that was opened."""
    if medium.kind == "image":
        width, height = medium.ref.size
        return MediaInfo(height, width)
    return (media_sound if medium.kind == "audio" else media_info)(medium, MediaRoot("."))


def _kept(path: str) -> Compared | None:
    try:
        with open(path, encoding="utf-8") as file:
            stated = json.load(file)
        lists = {name: tuple(stated[name]) for name in ("equal", "unequal")}
        return Compared(**{**stated, **lists})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _keep(path: str, compared: Compared) -> Compared:
    """What stands at `path` from now on: of several processes, the first one's.

    A cache that cannot be written costs the next run some seconds, and this one nothing.
    """
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if _kept(path) is None:
            files.write_json(path, asdict(compared))
    return _kept(path) or compared


def _talks(
    counter: RecordCounter, shards: Sequence[ShardContext], scans: Sequence[ShardScan]
) -> list[Conversation]:
    """Some of the data's records from all over it, images opened; none from object stores."""
    local = [pair for pair in zip(shards, scans, strict=True) if not urls.is_url(pair[0].path)]
    images: list[Conversation] = []
    texts: list[Conversation] = []
    for shard, record_range in _spread_ranges(local, _NUM_RANGES):
        for raw in itertools.islice(
            raw_records(shard, record_range, counter.transform), _PER_RANGE
        ):
            talk = _opened(raw, shard, counter)
            if talk is not None:
                (images if talk.media else texts).append(talk)
    num_images = min(len(images), max(NUM_RECORDS // 2, NUM_RECORDS - len(texts)))
    return images[:num_images] + texts[: NUM_RECORDS - num_images]


def _opened(raw: RawRecord, shard: ShardContext, counter: RecordCounter) -> Conversation | None:
    """The record's conversation with its images opened; None where it is not to be had easily."""
    if isinstance(raw.record, BadRecord):
        return None
    try:
        talk = parse(raw.record)
        if talk.input_ids is not None or len(talk.media) > _MAX_IMAGES:
            return None
        if any(is_remote(medium, shard.root) for medium in talk.media):
            return None
        is_known = counter.files is not None and counter.files.is_known
        if is_known and any(medium.kind != "image" for medium in talk.media):
            return None  # a family's videos are compared in the project's tests
        if talk.media:
            talk = parse(open_media(raw.record, shard.root))
        facts = [_facts(medium) for medium in talk.media]
    except (BadRecord, MissingExtraError, OSError, MemoryError, RecursionError):
        return None
    return None if any(map(_is_large, facts)) else talk


def _is_large(info: MediaInfo) -> bool:
    if info.num_samples:
        return info.num_samples > _MAX_SECONDS * info.sampling_rate
    most = _MAX_PIXELS if info.num_frames == 1 else _MAX_CLIP_PIXELS
    return info.num_frames * info.height * info.width > most


def choose_text_backend(
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
    ranges = _spread_ranges(zip(shards, scans, strict=True), _TEXT_RANGES)
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


def _spread_ranges(
    pairs: Iterable[tuple[ShardContext, ShardScan]], most: int
) -> list[tuple[ShardContext, RecordRange]]:
    """At most so many ranges, from all over the shards."""
    ranges = [(shard, record_range) for shard, scan in pairs for record_range in scan.ranges]
    return ranges[:: max(1, -(-len(ranges) // most))]
