"""Kinds of containers, by name and by ending."""

from __future__ import annotations

import functools
import os
from typing import Any, get_args

import orjson

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Container as Kind
from packidx.io import urls
from packidx.records.containers.base import BOM, Container, local_shard, named
from packidx.records.containers.convert import CODECS, HOLDERS, Converted, text_blocks
from packidx.records.containers.lines import Lines
from packidx.records.containers.tables import ARROW, PARQUET
from packidx.records.containers.tar import COMPRESSED, Tar
from packidx.records.media.references import TURN_KEYS

DEFAULT = "jsonl"
"""The kind of a shard whose manifest does not say."""

_BINARY: dict[str, Container] = {"parquet": PARQUET, "arrow": ARROW, "tar": Tar()}
KINDS: tuple[str, ...] = get_args(Kind)
"""Every kind of container."""

_ENDINGS = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "json", "csv": "csv", "tsv": "tsv"}
SUFFIXES = (
    *(f".{ending}" for ending in _ENDINGS),
    *(f".{ending}.{codec}" for ending in _ENDINGS for codec in CODECS),
    *(f".{kind}" for kind in _BINARY),
)
"""Endings of file names that hold records."""
KNOWN = ", ".join(SUFFIXES)
JSON = (".json", *(f".json.{codec}" for codec in CODECS))
"""Endings of files that must be looked into to know what they are."""


@functools.cache
def container(kind: str, delimiter: str | None = None, ignore: tuple[str, ...] = ()) -> Container:
    """Return what reads files of a kind.

    Args:
        delimiter: between the cells of a table in text, where it is not the kind's own; with one,
            cells may be quoted, in a TSV, too.
        ignore: members beside the records of a JSON object that are as if they were not there.

    Raises:
        SourceError: no such kind; it may be a newer version's.
        OptionError: `delimiter` is not one character, or the kind has none.
    """
    if kind not in KINDS:
        raise SourceError(f"no container of kind {kind!r}: known are {', '.join(KINDS)}")
    text = kind.partition(".")[0]
    if delimiter is not None:
        if text not in ("csv", "tsv"):
            raise OptionError(f"a delimiter is for csv and tsv files, not for {kind}")
        if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
            raise OptionError(f"the delimiter is {delimiter!r}: give one ASCII character")
    if kind == "jsonl":
        return Lines()
    return _BINARY[kind] if kind in _BINARY else Converted(kind, delimiter, ignore)


def strip_suffix(name: str) -> str:
    """A file's name without the ending that says what it holds."""
    longest = max((ending for ending in SUFFIXES if name.endswith(ending)), key=len, default="")
    return name.removesuffix(longest)


def required_kind(uri: str, path: str) -> str:
    """The container of a file of records.

    Raises:
        SourceError: the file is of no known kind.
    """
    if not urls.is_url(path) and not os.path.isfile(path):  # `find_shards` says what it is
        return DEFAULT
    refuse_compressed(uri)
    kind = kind_of(path)
    if kind is not None:
        return kind
    if path.endswith(JSON):
        raise SourceError(
            f"{uri} holds one object that is neither a record nor a mix: write an array of "
            "records, one record a line, or a mix of data sets with file_name"
        )
    raise SourceError(f"{uri} is of an unknown kind: known endings are {KNOWN}, and .yaml, .yml")


def refuse_compressed(uri: str) -> None:
    """Raise a SourceError if `uri` is the name of a compressed tar."""
    if uri.endswith(COMPRESSED):
        raise SourceError(
            f"{uri} is a compressed tar, which has no byte ranges: to read one sample, all before "
            "it would have to be unpacked; unpack it and name the plain .tar"
        )


_OBJECT_BYTES = 16 << 20  # of a file that is a single object, such as a mix
_LINE_BYTES = 64 << 20  # of the first line of others
_OF_RECORDS = frozenset((*TURN_KEYS, "prompt", "question", "instruction", "text", "input_ids"))


def kind_of(path: str) -> str | None:
    """The kind of a file: by its name, and for ``.json`` by how it begins.

    Returns:
        One of `KINDS`, or None where the name has no known ending, or a ``.json`` file holds an
        object that is not a line of records (a mix, a configuration).

    Raises:
        SourceError: the file cannot be read.
    """
    name = os.path.basename(path)
    for kind in _BINARY:
        if name.endswith(f".{kind}"):
            return kind
    stem, codec = name, ""
    for ending in (f".{codec}" for codec in CODECS):
        if name.endswith(ending):
            stem, codec = name.removesuffix(ending), ending
    text = _ENDINGS.get(stem.rpartition(".")[2]) if "." in stem else None
    if text == "json":
        with local_shard(path) as copy:  # which is read again for its records
            text = _array_or_lines(copy, codec[1:])
    return None if text is None else text + codec


def _array_or_lines(path: str, codec: str) -> str | None:
    with named(path):
        blocks = text_blocks(path, codec)
        head = b""
        while not head and (block := next(blocks, b"")):
            head = block.removeprefix(BOM).lstrip(b" \t\r\n")
        if head.startswith(b"["):
            return "json"
        while b"\n" not in head and len(head) < _LINE_BYTES and (block := next(blocks, b"")):
            head += block
        record = _object(head.partition(b"\n")[0])
        while record is None and len(head) < _OBJECT_BYTES and (block := next(blocks, b"")):
            head += block
        line, _, rest = head.partition(b"\n")
        if record is not None and (rest.strip() or any(block.strip() for block in blocks)):
            return "jsonl"
    second = rest.partition(b"\n")[0]
    whole = record or _object(head)
    if whole is not None and _holds_records(whole):
        return "json"
    if whole is not None:
        return None if record is None else "jsonl"
    # a large object or one that is cut, or lines of which the first is bad
    return "json" if _is_open(line) and _object(second) is None else "jsonl"


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_open(line: bytes) -> bool:
    """Return whether a text begins an object that ends behind it."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return line.startswith(b"{") and error.pos >= len(line.rstrip().decode("utf-8", "replace"))
    return False


def _holds_records(value: dict[str, Any]) -> bool:
    """Return whether an object is not a record, but holds some."""
    if not _OF_RECORDS.isdisjoint(value):
        return False
    return any(isinstance(held := value[name], list) and held for name in HOLDERS & value.keys())
