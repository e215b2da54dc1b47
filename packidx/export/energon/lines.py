"""A pack as a line of ``packs.jsonl`` (FORMAT.md): text in place, media by their members' names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from packidx.errors import SourceError
from packidx.export.energon.members import MemberName, NamedSample
from packidx.index import Pack, Sample
from packidx.records.conversation import Conversation, Media, Turn
from packidx.records.dialects.parse import parse

_FACTS = ("height", "width", "num_frames", "fps", "frame_indices")


class Written(NamedTuple):
    """What a line says of a sample's record."""

    key: str
    """In its tar."""
    json: dict[str, Any]
    """The record: ``messages`` (and ``tools``), or ``input_ids`` (and ``labels``)."""
    media: list[str]
    """Names of members, one for each placeholder in order; of a video given as frames, all."""
    aux: str | None = None
    """Which of several folders its shard is in."""


def written(sample: NamedSample, shard: str, aux: str | None) -> Written:
    """A sample as a trainer needs it.

    Args:
        sample: as it is in its tar.
        shard: for the error.
        aux: name of the folder, where there are several.

    Raises:
        BadRecord: the record cannot be understood.
        SourceError: it has a medium that is no member of its tar.
    """
    conversation = parse(sample.record)
    media: list[str] = []
    for medium in conversation.media:
        refs = medium.ref if isinstance(medium.ref, list) else [medium.ref]
        for ref in refs:
            if not isinstance(ref, MemberName):
                raise SourceError(
                    f"sample {sample.key!r} of {shard} has a medium that is no member of its tar, "
                    "where Energon could find it: `packidx export wds` writes tars that hold all"
                )
            media.append(ref.decode())
    ident = sample.record.get("id")
    said = {} if ident in (None, sample.key) else {"id": ident}
    return Written(sample.key, {**said, **_text(conversation)}, media, aux)


def pack_line(pack: Pack, samples: Sequence[Written], *, with_ids: bool) -> bytes:
    """A pack's line, the newline included.

    Args:
        pack: a pack.
        samples: its samples, by position.
        with_ids: whether a transform needs to know `sample_id`.

    Raises:
        SourceError: a record is nested too deeply.
    """
    epoch = pack.stats["epoch"]
    line = {
        "pack_id": pack.pack_id,
        **({"epoch": epoch} if epoch else {}),
        "samples": [
            _sample(sample, located, with_ids)
            for sample, located in zip(samples, pack.samples, strict=True)
        ],
    }
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        keys = ", ".join(sample.key for sample in samples)
        raise SourceError(
            f"pack {pack.pack_id} cannot be written as JSON ({error}): leave out which of its "
            f"samples cannot, {keys[:300]}"
        ) from None


def _sample(sample: Written, located: Sample, with_ids: bool) -> dict[str, Any]:
    optional = {
        "copy": located.copy,
        "piece": located.piece,
        "token_start": located.token_start,
        "aux": sample.aux,
    }
    return {
        "key": sample.key,
        "json": sample.json,
        "media": sample.media,
        "token_len": located.length,
        **{name: value for name, value in optional.items() if value},
        **({"sample_id": located.sample_id} if with_ids else {}),
    }


def _text(conversation: Conversation) -> dict[str, Any]:
    if conversation.input_ids is not None:
        labels = conversation.labels
        ids = {"input_ids": list(conversation.input_ids)}
        return ids if labels is None else {**ids, "labels": list(labels)}
    messages = {"messages": [_message(turn) for turn in conversation.turns]}
    return {**messages, "tools": conversation.tools} if conversation.tools else messages


def _message(turn: Turn) -> dict[str, Any]:
    flag = {} if turn.train is None else {"train": turn.train}
    return {"role": turn.role, "content": _content(turn), **turn.extra, **flag}


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """A string where `conversation.to_messages` has one."""
    if turn.is_string:
        return next((part for part in turn.parts if isinstance(part, str)), "")
    return [
        {"type": "text", "text": part} if isinstance(part, str) else dict(_placeholder(part))
        for part in turn.parts
    ]


def _placeholder(medium: Media) -> Iterator[tuple[str, Any]]:
    yield "type", medium.kind
    if isinstance(medium.ref, list):
        yield "frames", len(medium.ref)
    for name in _FACTS:
        value = getattr(medium, name)
        if value is not None and not (name == "num_frames" and isinstance(medium.ref, list)):
            yield name, list(value) if isinstance(value, tuple) else value
    if medium.tokens is not None:
        yield "n_tokens", medium.tokens
