"""A tar sample's record with names where its media would be: headers and JSON are read, not media.

What a record says of its media is understood where every reader understands it
(`records.sources`): it is given names in the place of the contents, and hands them on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packidx.errors import SourceError
from packidx.io import ranges, urls
from packidx.io.ranges import ReadAhead
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.tar.samples import is_record, record_of, samples_of
from packidx.records.containers.tar.stream import Member, SkippingStream, members
from packidx.records.dialects.standard import standard
from packidx.records.layout import Layout

_LOCAL_BLOCK = 4096  # a header and a short record; a request to a store asks for more


class MemberName(bytes):
    """A member's name (UTF-8), where a record would have its content."""


class NamedSample(NamedTuple):
    """A sample without its media."""

    key: str
    """In its tar."""
    record: dict[str, Any]
    """In the standard names, `MemberName` where its media are."""
    ranges: dict[str, tuple[int, int]]
    """First byte and size of each member's content, by name."""


def read_named(path: str, offset: int, nbytes: int, layout: Layout) -> NamedSample:
    """A sample of a tar, without reading its media.

    Args:
        path: the shard.
        offset, nbytes: the sample's place in it.
        layout: its source's.

    Raises:
        BadRecord: the record cannot be understood; it could when it was counted.
        SourceError: the shard cannot be read or has something else there.
    """
    block = ranges.BLOCK if urls.is_url(path) else _LOCAL_BLOCK
    stream = SkippingStream(ReadAhead(path, offset + nbytes, block, block), offset)
    try:
        samples = list(samples_of(members(stream, content=is_record, is_archive=False)))
    except BrokenFile as error:
        raise _changed(path, str(error)) from None
    if len(samples) != 1 or "json" not in samples[0].extensions:
        raise _changed(path, f"it has no sample at bytes {offset} to {offset + nbytes}")
    files = list(samples[0].extensions.values())
    for extension, member in samples[0].extensions.items():
        if extension != "json":
            member.data = _named(path, member)
    record = standard(record_of(samples[0], f" ({path})"), layout, False)
    return NamedSample(
        samples[0].key, record, {member.name: (member.offset, member.nbytes) for member in files}
    )


def _changed(path: str, what: str) -> SourceError:
    return SourceError(f"{path}: {what}; restore the shard, or estimate and plan again")


def _named(path: str, member: Member) -> MemberName:
    try:
        return MemberName(member.name.encode())
    except UnicodeEncodeError:
        raise SourceError(
            f"{path}: the name of member {member.name!r} is not UTF-8, so nothing can look it up: "
            "rename it"
        ) from None
