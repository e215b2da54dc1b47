"""A pack as a line of ``packs.jsonl`` (FORMAT.md): text in place, media by their members' names.

Of a tar's sample headers and JSON are read, not media. What a record says of its media is
understood where every reader understands it (`records.sources`): it is given names in the place of
the contents, and hands them on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from packidx.errors import SourceError
from packidx.index import Pack, Sample
from packidx.io import ranges, urls
from packidx.io.ranges import ReadAhead
from packidx.records.containers import tar
from packidx.records.containers.base import BrokenFile
from packidx.records.conversation import Media, Turn, content_of, to_record
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import standard
from packidx.records.layout import Layout

_FACTS = ("height", "width", "num_frames", "fps", "frame_indices")
_LOCAL_BLOCK = 4096  # a header and a short record; a request to a store asks for more


class MemberName(bytes):
    """A member's name (UTF-8), where a record would have its content."""


class Members(NamedTuple):
    """A sample of a tar, of which its JSON alone is read."""

    key: str
    sample: tar.Sample
    ranges: dict[str, tuple[int, int]]
    """First byte and size of each member's content, by name."""


def read_members(path: str, offset: int, nbytes: int) -> Members:
    """A sample of the tar at `path`, by its place, without reading its media.

    Raises:
        SourceError: the shard cannot be read or has something else there.
    """
    block = ranges.BLOCK if urls.is_url(path) else _LOCAL_BLOCK
    end = offset + nbytes
    read = ReadAhead(path, end, block, block).read
    try:
        run = tar.members(read, offset, end, content=tar.is_record, is_archive=False)
        samples = list(tar.samples_of(run))
    except BrokenFile as error:
        raise _changed(path, str(error)) from None
    if len(samples) != 1 or "json" not in samples[0].extensions:
        raise _changed(path, f"it has no sample at bytes {offset} to {end}")
    [sample] = samples
    held = sample.extensions.values()
    return Members(sample.key, sample, {each.name: (each.offset, each.nbytes) for each in held})


def _changed(path: str, what: str) -> SourceError:
    return SourceError(f"{path}: {what}; restore the shard, or estimate and plan again")


def _name(path: str, name: str) -> MemberName:
    try:
        return MemberName(name.encode())
    except UnicodeEncodeError:
        raise SourceError(
            f"{path}: the name of member {name!r} is not UTF-8, so nothing can look it up: rename "
            "it"
        ) from None


class Record(NamedTuple):
    """What a line says of a sample."""

    key: str
    """In its tar."""
    json: dict[str, Any]
    """The record: ``messages`` (and ``tools``), or ``input_ids`` (and ``labels``)."""
    media: list[str]
    """Names of members, one for each placeholder in order; of a video given as frames, all."""
    aux: str | None = None
    """Which of several folders its shard is in."""


def record_of(members: Members, shard: str, layout: Layout) -> Record:
    """A sample as a trainer needs it.

    Args:
        members: the sample; its media get names in the place of their contents.
        shard: its path.
        layout: its source's.

    Raises:
        BadRecord: the record cannot be understood; it could when it was counted.
        SourceError: it has a medium that is no member of its tar.
    """
    for extension, member in members.sample.extensions.items():
        if extension != "json":
            member.data = _name(shard, member.name)
    record = tar.record_of(members.sample, f" ({shard})")
    return record_in_words(members.key, standard(record, layout, False), shard)


def record_in_words(key: str, record: dict[str, Any], shard: str) -> Record:
    """A record in the standard names, `MemberName` where its media are, as a trainer needs it.

    Raises:
        BadRecord, SourceError: as `record_of`.
    """
    conversation = parse(record)
    media: list[str] = []
    for medium in conversation.media:
        for ref in medium.ref if isinstance(medium.ref, list) else [medium.ref]:
            if not isinstance(ref, MemberName):
                raise SourceError(
                    f"sample {key!r} of {shard} has a medium that is no member of its tar, where "
                    "Energon could find it: `packidx export wds` writes tars that hold all"
                )
            media.append(ref.decode())
    ident = record.get("id")
    said = {} if ident in (None, key) else {"id": ident}
    return Record(key, {**said, **to_record(conversation, _message)}, media)


def pack_line(pack: Pack, samples: Sequence[Record]) -> bytes:
    """A pack's line, the newline included.

    Args:
        samples: the pack's, by position.

    Raises:
        SourceError: a record is nested too deeply.
    """
    epoch = pack.stats["epoch"]
    line = {
        "pack_id": pack.pack_id,
        **({"epoch": epoch} if epoch else {}),
        "samples": [
            _sample(sample, located) for sample, located in zip(samples, pack.samples, strict=True)
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


def _sample(sample: Record, located: Sample) -> dict[str, Any]:
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
    }


def _message(turn: Turn) -> dict[str, Any]:
    flag = {} if turn.train is None else {"train": turn.train}
    content = content_of(turn, lambda medium: dict(_placeholder(medium)))
    return {"role": turn.role, "content": content, **turn.extra, **flag}


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
