"""Shards on disk: finding them, scanning them once, reading their lines and single records."""

from __future__ import annotations

import collections
import glob
import hashlib
import os
import re
import stat
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from packidx.errors import BadRecord, SourceError

SUFFIX = ".jsonl"
TASK_BYTES = 16 << 20
"""Bytes of a shard that one task counts; part of the output's layout, so not an option."""

_BLOCK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\v\f"
_NAMED = re.compile(r"([^=/]+)=(.+)", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version


@dataclass(frozen=True, slots=True)
class Shard:
    """One input file."""

    uri: str
    """As given."""
    path: str
    """Where it is on this machine."""
    source: str
    """Name of the source it belongs to."""


@dataclass(frozen=True, slots=True)
class Range:
    """A run of whole lines of a shard."""

    start: int
    """First byte."""
    end: int
    """One past the last byte."""
    first_row: int
    """Number of the first record in it."""
    num_records: int


@dataclass(frozen=True, slots=True)
class ShardScan:
    """What one pass over a shard finds out."""

    nbytes: int
    sha256: str
    num_records: int
    """Lines that are not blank."""
    ranges: tuple[Range, ...]
    """The shard cut at line starts every `TASK_BYTES` or so, without ranges that are blank."""


def expand_sources(args: Sequence[str]) -> list[Shard]:
    """The shards that files, globs, folders and ``NAME=`` any of these stand for, in order.

    A source's name is the one stated, else the file's stem without a trailing shard number
    (``train-00003-of-00010`` → ``train``); for a folder, the path below it (``sub/train``).
    Files and folders whose names begin with a dot are not looked for.

    Raises:
        SourceError: nothing found, a file of an unknown kind, a file named twice, or a URL.
    """
    if isinstance(args, str):
        args = [args]
    shards = [shard for arg in args for shard in _expand(os.fspath(arg))]
    if not shards:
        raise SourceError("no source given: name a .jsonl file, a glob or a folder")
    seen: dict[str, str] = {}
    for shard in shards:
        real = os.path.realpath(shard.path)
        if real in seen:
            raise SourceError(f"{shard.uri} is the same file as {seen[real]}: name it only once")
        seen[real] = shard.uri
    return shards


def scan(path: str, progress: Callable[[int], None] | None = None) -> ShardScan:
    """Hash a shard, count its records and find where tasks may start, in one pass.

    Args:
        path: the shard.
        progress: called with the number of bytes just read.

    Raises:
        SourceError: the file cannot be read.
    """
    hasher = hashlib.sha256()
    counter = _LineCounter()
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                hasher.update(block)
                counter.add(block)
                if progress is not None:
                    progress(len(block))
    except OSError as error:
        raise _unreadable(path, error) from None
    return ShardScan(counter.offset, hasher.hexdigest(), *counter.finish())


def read_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every line in a byte range that is not blank.

    `start` is a line's start. The bytes are without the newline (``\\n`` or ``\\r\\n``) and without
    a byte order mark at the start of the file.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        with open(path, "rb", buffering=1 << 20) as file:
            if start == 0 and file.read(len(_BOM)) == _BOM:
                start = len(_BOM)
            file.seek(start)
            for line in file:
                if end is not None and start >= end:
                    return
                if not line.isspace():
                    body = line[:-1] if line.endswith(b"\n") else line
                    yield start, body[:-1] if body.endswith(b"\r") else body
                start += len(line)
    except OSError as error:
        raise _unreadable(path, error) from None


def decode(line: bytes, where: str = "") -> dict[str, Any]:
    """One line's JSON object.

    Args:
        line: the bytes.
        where: file and offset for the error's detail.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json`` or ``bad_record`` (JSON, but not an object).
    """
    try:
        record = orjson.loads(line)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            text = f"byte {wrong.start} is not UTF-8{where}"
            raise BadRecord("bad_utf8", text) from None
        raise BadRecord("bad_json", f"{error}{where}") from None
    if not isinstance(record, dict):
        kind = {list: "a list", str: "text", type(None): "null", bool: "a boolean"}
        text = f"the line is {kind.get(type(record), 'a number')}, not an object{where}"
        raise BadRecord("bad_record", text)
    return record


def read_record(path: str, offset: int, nbytes: int) -> dict[str, Any]:
    """The raw record at a locator.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json`` or ``bad_record``; the detail names file and offset.
        SourceError: the file is missing, unreadable or ends before the record does.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = b""
            while len(line) < nbytes:  # one call returns at most 2 GiB
                piece = os.pread(handle, nbytes - len(line), offset + len(line))
                if not piece:
                    break
                line = line + piece if line else piece
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if len(line) < nbytes:
        raise SourceError(
            f"{path} has only {len(line)} of the {nbytes} bytes planned at offset {offset}: "
            "the shard is not the one that was counted, so run estimate again"
        )
    return decode(line, f" ({path}, offset {offset})")


class _LineCounter:
    """Counts lines that are not blank, block by block, without joining blocks."""

    def __init__(self) -> None:
        self.offset = 0
        self._records = 0  # lines begun and found not to be blank
        self._blank = True  # the line at hand, so far
        self._cuts = [(0, 0)]  # (offset, records before it)

    def add(self, block: bytes) -> None:
        if self.offset == 0 and block.startswith(_BOM):
            block = block[len(_BOM) :]
            self.offset = len(_BOM)
        if not block:
            return
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 0x0A)
        head = block[: ends[0]] if len(ends) else block
        if self._blank and head.strip(_BLANK):
            self._blank = False
            self._records += 1
        if len(ends):
            self._add_lines(block, ends)
        self.offset += len(block)

    def _add_lines(self, block: bytes, ends: np.ndarray) -> None:
        """The lines that start in `block`; `ends` are the positions of its newlines."""
        starts = ends + 1
        filled = np.zeros(len(starts), np.int64)
        inner = starts[:-1]
        first = np.frombuffer(block, np.uint8)[inner]
        filled[:-1] = (first > 0x20) | ((first < 0x09) | ((first > 0x0D) & (first < 0x20)))
        for number in np.flatnonzero((filled[:-1] == 0) & (ends[1:] > inner)):
            filled[number] = bool(block[inner[number] : ends[number + 1]].strip(_BLANK))
        filled[-1] = bool(block[starts[-1] :].strip(_BLANK))
        before = self._records + np.concatenate(([0], np.cumsum(filled)))
        due = self._cuts[-1][0] + TASK_BYTES - self.offset
        if starts[-1] >= due:
            at = int(np.searchsorted(starts, due))
            self._cuts.append((self.offset + int(starts[at]), int(before[at])))
        self._records = int(before[-1])
        self._blank = not filled[-1]

    def finish(self) -> tuple[int, tuple[Range, ...]]:
        cuts = [*self._cuts, (self.offset, self._records)]
        ranges = (
            Range(start, end, row, until - row)
            for (start, row), (end, until) in zip(cuts, cuts[1:], strict=False)
        )
        return self._records, tuple(part for part in ranges if part.num_records)


def _expand(arg: str) -> list[Shard]:
    found = _find(arg)
    name = None
    if not found and (named := _NAMED.fullmatch(arg)):
        name, arg = named[1], named[2]
        found = _find(arg)
    if not found:
        hint = "no .jsonl file in it" if os.path.isdir(_strip_scheme(arg)) else "no such file"
        raise SourceError(f"{arg}: {hint}; a source is a .jsonl file, a glob or a folder")
    for shard in found:
        _check(shard)
    return [Shard(shard.uri, shard.path, name or shard.source) for shard in found]


def _find(arg: str) -> list[Shard]:
    path = _strip_scheme(arg)
    if os.path.isdir(path):
        below = sorted(_files_below(path))
        top = os.path.basename(os.path.abspath(path)) or "data"
        return [
            Shard(os.path.join(arg, name), os.path.join(path, name), _source_name(name, top))
            for name in below
        ]
    if os.path.lexists(path):
        return [_single(arg, path)]
    prefix = arg[: len(arg) - len(path)]
    matches = sorted(name for name in glob.glob(path, recursive=True) if not os.path.isdir(name))
    return [_single(prefix + name, name) for name in matches]


def _single(uri: str, path: str) -> Shard:
    parent = os.path.basename(os.path.dirname(os.path.abspath(path))) or "data"
    return Shard(uri, path, _source_name(os.path.basename(path), parent))


def _source_name(name: str, parent: str) -> str:
    """`name` without suffix and shard number; `parent` where nothing is left of it."""
    folder, base = os.path.split(name)
    stem = _SHARD_NUMBER.sub("", base.removesuffix(SUFFIX))
    return os.path.join(folder, stem) if stem else (folder or parent)


def _files_below(folder: str) -> Iterator[str]:
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a symbolic link back up
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield os.path.relpath(os.path.join(here, name), folder)


def _check(shard: Shard) -> None:
    if not shard.path.endswith(SUFFIX):
        raise SourceError(f"{shard.uri} is of an unknown kind: a source is a .jsonl file")
    try:
        shard.uri.encode()
        mode = os.stat(shard.path).st_mode
    except UnicodeEncodeError:
        raise SourceError(f"the name of {shard.uri!r} is not UTF-8: rename the file") from None
    except OSError as error:
        raise _unreadable(shard.uri, error) from None
    if not stat.S_ISREG(mode):
        raise SourceError(f"{shard.uri} is not a regular file: write its records to one")


def _strip_scheme(arg: str) -> str:
    scheme = _SCHEME.match(arg)
    if scheme is None:
        return arg
    if scheme[1].lower() != "file":
        raise SourceError(
            f"{arg}: {scheme[1]}:// is not supported, only local files and file:// are: "
            "download it first"
        )
    return urllib.parse.unquote(arg[scheme.end() :].removeprefix("localhost"))


def _unreadable(path: str, error: Exception) -> SourceError:
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError(f"cannot read {path}: {reason}; check the path and its permissions")


def short_names(paths: Sequence[str]) -> list[str]:
    """For each path its shortest suffix, in whole components, that no other path ends with."""
    parts = [os.path.abspath(path).split(os.sep) for path in paths]
    names = [""] * len(paths)
    open_ones = list(range(len(paths)))
    depth = 1
    while open_ones:
        for number in open_ones:
            names[number] = "/".join(parts[number][-depth:])
        count = collections.Counter(names[number] for number in open_ones)
        open_ones = [
            number
            for number in open_ones
            if count[names[number]] > 1 and depth < len(parts[number])
        ]
        depth += 1
    return names
