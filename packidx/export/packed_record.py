"""One pack as the members of one WebDataset sample: its JSON and its media.

The JSON is LoongForge's packed one (``packed_multi_mix_qa``), see docs/energon-and-tars.md.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from packidx.errors import BadRecord, ChangedSource, PackidxError, SourceError
from packidx.export.outputs import labels_of
from packidx.index import PlannedPack, PlannedSample
from packidx.io import storage
from packidx.io.ranges import Extent
from packidx.processor.counter import ConversationCounter
from packidx.processor.labels import ROLE, LabelPolicy
from packidx.records.conversation import (
    Conversation,
    Media,
    MediaInfo,
    Turn,
    to_record,
)
from packidx.records.fetch import Fetcher
from packidx.records.media.images import read_image
from packidx.records.media.opener import MediaOpener, media_info
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import ending_of, refs_of

Names = list[str | list[str]]
"""Member names of a sample's media, in order of appearance; of a video's frames a list."""
Files = list[tuple[str, bytes]]
"""Name after the key, and content."""


def pack_members(
    pack: PlannedPack, fetcher: Fetcher, counter: ConversationCounter | None
) -> dict[str, bytes]:
    """Read the records and media of a pack: name after the key → content.

    Args:
        counter: counts media as they were counted for the plan; None compares none.

    Raises:
        ChangedSource: a medium is another one than was counted.
        SourceError: a sample cannot be read or written; the text names shard and key.
    """
    # Those that wait for a store are asked for side by side.
    threads = storage.THREADS if all(map(fetcher.waits, pack.samples)) else 1
    read = functools.partial(_read_sample, fetcher, counter)
    written = storage.map_overlapped(read, pack.samples, threads)
    meta: dict[str, Any] = {"pack_id": pack.pack_id}
    members = {"sample_ids": "sample_id", "keys": "key", "sources": "source"}
    for name, member in {**members, "token_lens": "length"}.items():
        meta[name] = [getattr(sample, member) for sample in pack.samples]
    meta["total_token_len"] = sum(meta["token_lens"])
    meta["records"] = [entry.record for entry in written]
    kinds: set[str] = set().union(*(entry.kinds for entry in written))
    stated = {
        "texts": {
            "prompts": [[asked for asked, _ in entry.pairs] for entry in written],
            "captions": [[answer for _, answer in entry.pairs] for entry in written],
        },
        "media_files": [entry.names for entry in written],
        "media_type": "+".join(sorted(kinds)) or "text",
        "_meta": meta,
    }
    media = (file for entry in written for file in entry.files)
    return {"json": orjson.dumps(stated), **dict(media)}


class _Written(NamedTuple):
    """A sample as it stands in its pack's JSON, and its files."""

    pairs: list[tuple[str, str]]
    names: Names
    kinds: set[str]
    record: dict[str, Any]
    files: Files


def _read_sample(
    fetcher: Fetcher, counter: ConversationCounter | None, sample: PlannedSample
) -> _Written:
    """A sample, whose files' names begin with its position in the pack.

    Raises:
        PackidxError: it cannot be read, parsed or written.
    """
    try:
        record, root = fetcher.record(sample)
        collector = _Collector(root, fetcher.index.resolve)
        if record.conversation is None:
            raise record.error or BadRecord("bad_record", "no conversation")
        conversation = collector.open(record.conversation)
        conversation = with_labels(conversation, labels_of(fetcher.index))
        if counter is not None:
            _check_media(sample, conversation, collector, counter)
        names: Names = []
        files: Files = []
        for number, medium in enumerate(conversation.media):
            stem, is_list = f"s{sample.position:03d}_{number}", isinstance(medium.ref, list | tuple)
            refs = medium.ref if is_list else [medium.ref]
            stems = [f"{stem}_{at:04d}" for at in range(len(refs))] if is_list else [stem]
            read = [_name_file(n, collector.files.get(r)) for n, r in zip(stems, refs, strict=True)]
            files += read
            own = [name for name, _ in read]
            names.append(own if is_list else own[0])
        pairs, messages = pairs_of(conversation), messages_of(conversation, names)
        try:
            orjson.dumps([pairs, messages])
        except TypeError as error:
            raise BadRecord("bad_turn", f"it is not JSON ({error})") from None
    except PackidxError as error:
        if sample.shard is None:  # a plan from bare lengths
            raise
        shard = fetcher.index.snapshot.shards[sample.shard].uri
        what = f"pack {sample.pack_id}, sample {sample.key!r} of shard {shard}: {error}"
        if isinstance(error, ChangedSource):
            raise ChangedSource(what) from error
        raise SourceError(
            f"{what}; mend it and export again, or plan without it (packidx plan --exclude)"
        ) from error
    kinds = {medium.kind for medium in conversation.media}
    return _Written(pairs, names, kinds, messages, files)


def with_labels(conversation: Conversation, policy: LabelPolicy) -> Conversation:
    """`conversation` whose turns say themselves if the policy does not train on them."""
    trains = policy.trains(conversation.turns)
    turns = [
        turn if is_trained or turn.role != ROLE else replace(turn, train=False)
        for turn, is_trained in zip(conversation.turns, trains, strict=True)
    ]
    return replace(conversation, turns=tuple(turns)) if False in trains else conversation


def _check_media(
    sample: PlannedSample, talk: Conversation, collector: _Collector, counter: ConversationCounter
) -> None:
    """Compare the patches of what was read with those that were planned.

    Raises:
        ChangedSource: a medium has others.
        BadRecord: a medium cannot be read.
    """
    planned = [[each[side] for side in "thw"] for each in sample.media or ()]
    if len(planned) != len(talk.media):
        return
    infos: list[MediaInfo | None] = [None] * len(planned)
    for number, medium in enumerate(talk.media):
        if all(planned[number]):  # whatever its record states of its size
            content = [collector.files[ref][1] for ref in refs_of(medium)]
            ref = content if isinstance(medium.ref, list | tuple) else content[0]
            facts = medium.stated.items()
            own = {name: fact for name, fact in facts if name not in ("height", "width")}
            infos[number] = media_info(replace(medium, ref=ref, stated=own), MediaRoot(""))
    counted = counter.count_media([talk], [infos])
    for number, (grid, info) in enumerate(zip(planned, infos, strict=True)):
        here = counted.grid[number].tolist()
        if info is not None and (number in counted.errors or here != grid):
            raise ChangedSource(
                f"its {talk.media[number].kind} {number} is not the one that was counted: it has "
                f"{info.width} x {info.height} pixels and {info.num_frames} frames, patches of "
                f"{here}, and {grid} were planned; restore it, or estimate and plan again"
            )


_OWN = re.compile(r"\.([A-Za-z0-9]{1,8})$")


def media_extension(data: bytes, name: str = "") -> str:
    """The extension of a medium, without a dot; its file's own where the content tells none."""
    own = _OWN.search(name)
    return ending_of(data[:80]) or (own[1].lower() if own is not None else "bin")


def _name_file(stem: str, content: tuple[str, bytes] | None) -> tuple[str, bytes]:
    if content is None:
        raise BadRecord("bad_media", "a medium is given neither as a file nor as bytes")
    name, data = content
    return f"{stem}.{media_extension(data, name)}", data


class _Collector(MediaOpener):
    """Reads the bytes of a record's media, and puts a key of `files` in each one's place."""

    def __init__(self, root: MediaRoot, moved: Any) -> None:
        super().__init__(root, moved)
        self.files: dict[Any, tuple[str, bytes]] = {}
        """The reference in the record → the medium's own name, and its bytes."""

    def reference(self, kind: str, ref: Any) -> str:
        if not isinstance(ref, str | bytes | Extent):
            raise BadRecord("bad_media", f"a medium is given as {type(ref).__name__}")
        located = self.located_at(ref)
        data = read_image(located)  # of whatever kind: its bytes are not looked into
        if not data:
            raise BadRecord("broken_media", "a medium in the record is empty")
        stand_in = f"#{len(self.files)}"
        self.files[stand_in] = os.path.basename(located) if isinstance(located, str) else "", data
        return stand_in


def pairs_of(conversation: Conversation) -> list[tuple[str, str]]:
    """All words of a conversation as (question, answer), media as ``<image>`` and the like.

    Turns before an answer that are not the assistant's are joined by newlines; where either side of
    a pair is missing it is empty. Tool calls stand as JSON after what their turn says.
    """
    pairs: list[tuple[str, str]] = []
    asked: list[str] = []
    for turn in conversation.turns:
        if turn.role == "assistant":
            pairs.append(("\n".join(asked), "\n".join(_spoken_parts(turn))))
            asked = []
        else:
            asked += _spoken_parts(turn)
    if asked:
        pairs.append(("\n".join(asked), ""))
    return pairs


def messages_of(conversation: Conversation, names: Names) -> dict[str, Any]:
    """A conversation as a record of OpenAI's dialect, or of tokens, its media by their `names`."""
    left = iter(names)

    def named(medium: Media) -> dict[str, Any]:
        own = {"type": medium.kind, medium.kind: next(left)}
        return own | medium.stated | medium.requests

    return to_record(conversation, named)


def _spoken_parts(turn: Turn) -> list[str]:
    text = "".join(part if isinstance(part, str) else f"<{part.kind}>" for part in turn.parts)
    calls = turn.extra.get("tool_calls")
    # What is not JSON has no words either: who writes the record's messages refuses it.
    called = orjson.dumps(calls, default=str).decode() if calls else None
    return [words for words in (text, called) if words] or [""]
