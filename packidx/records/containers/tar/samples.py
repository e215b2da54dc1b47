"""Members of a tar as samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from packidx.errors import BadRecord
from packidx.io.ranges import Extent
from packidx.records.containers.lines import decode
from packidx.records.containers.tar.stream import CutMember, Member

MEMBERS = "__members__"
"""Where a record has its sample's files, as `Members`, until `dialects.webdataset` places them."""
KEY = "__key__"
"""Where a record has its sample's key, as in a WebDataset."""

RECORD, TEXT = "json", "txt"  # extensions
DUPLICATE = "duplicate_key"
"""Why a sample is rejected whose key came before."""

_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")


class Members(NamedTuple):
    """The files of a sample."""

    key: str
    files: dict[str, bytes | Extent]
    """Name in the tar → content, in the order of the tar."""


@dataclass(slots=True)
class Sample:
    """Neighbouring members of one key."""

    key: str
    start: int
    end: int
    extensions: dict[str, Member] = field(default_factory=dict)


def samples_of(members: Iterator[Member]) -> Iterator[Sample]:
    """Members grouped by key; one that its sample has already begins another of that key."""
    sample: Sample | None = None
    try:
        for member in members:
            if (named := _named(member.name)) is None:
                continue
            key, extension = named
            if sample is None or sample.key != key or extension in sample.extensions:
                if sample is not None:
                    yield sample
                sample = Sample(key, member.start, member.end)
            sample.extensions[extension] = member
            sample.end = member.end
    except CutMember as error:
        named = _named(error.name)
        if sample is not None and named is not None and named[0] != sample.key:
            yield sample  # the cut is in the next one
        raise
    if sample is not None:
        yield sample


def _named(name: str) -> tuple[str, str] | None:
    """Key and extension of a member; None where `webdataset` passes over it, too: it has no key, or
    is about the data set."""
    name_parts = None if _META.match(name) else _NAME.fullmatch(name)
    return None if name_parts is None else (name_parts[1], name_parts[2].lower())


def is_record(name: str) -> bool:
    """Whether a member is its sample's record, or a text beside it."""
    named = _named(name)
    return named is not None and named[1] in (RECORD, TEXT)


def record_of(sample: Sample, where: str = "") -> dict[str, Any]:
    if not is_text(sample.key):
        raise BadRecord("bad_utf8", f"the key {sample.key!r} is not UTF-8: rename it{where}")
    files = sample.extensions.values()
    for file in files:
        if file.wrong is not None:
            raise BadRecord(file.wrong.reason, f"member {file.name!r}: {file.wrong.detail}{where}")
    own = [sample.extensions.get(extension) for extension in (RECORD, TEXT)]
    if own == [None, None]:
        has = ", ".join(sample.extensions)[:200]
        text = f"has no json or txt member, only {has}: a record is one of these"
        raise BadRecord("bad_record", f"sample {sample.key!r} {text}{where}")
    member, text_file = own
    record: dict[str, Any] = {}
    if member is not None:
        content = member.data if isinstance(member.data, bytes) else b""
        record = decode(content, f" (member {member.name!r} of the shard){where}")
    others = {file.name: file.data or b"" for file in files if file not in own}
    if text_file is not None:
        record = _with_text(record, text_file, member is None, where)
    if record.get("id") in (None, ""):
        record["id"] = sample.key
    return {**record, KEY: sample.key, MEMBERS: Members(sample.key, others)}


def _with_text(record: dict[str, Any], file: Member, is_alone: bool, where: str) -> dict[str, Any]:
    """`record` with the text beside it, unless it has one of that name.

    Raises:
        BadRecord: ``bad_utf8``, the text is all there is, and is not UTF-8.
    """
    try:
        text = (file.data if isinstance(file.data, bytes) else b"").decode()
    except UnicodeDecodeError:
        if is_alone:
            detail = f"member {file.name!r} is not UTF-8: write it anew{where}"
            raise BadRecord("bad_utf8", detail) from None
        return record  # it may be anything beside a record that says what it needs itself
    return {TEXT: text, **record}


def duplicate(sample: Sample) -> BadRecord:
    names = ", ".join(member.name for member in sample.extensions.values())
    return BadRecord(
        DUPLICATE,
        f"the shard has samples of the key {sample.key!r} before these members ({names[:200]}): "
        "members of one sample stand side by side, and keys are unique",
    )


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
