"""JSON arrays, streamed: the byte ranges of the top-level elements, block by block.

Strings, escapes and nesting are followed with NumPy over whole blocks, so a file of any size is cut
into elements without being loaded; each element is then decoded by itself, and a bad one is a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from packidx.records.containers.base import BOM, BrokenFile
from packidx.records.containers.blocks import Gathered, TooLarge
from packidx.records.containers.lines import JsonText

Positions = np.ndarray[Any, np.dtype[Any]]

_QUOTE, _ESCAPE, _OPEN, _CLOSE, _COMMA = range(1, 6)
_BLANK = b" \t\r\n"


def _classes() -> bytes:
    table = bytearray(256)
    for kind, characters in (
        (_QUOTE, b'"'),
        (_ESCAPE, b"\\"),
        (_OPEN, b"[{"),
        (_CLOSE, b"]}"),
        (_COMMA, b","),
    ):
        for character in characters:
            table[character] = kind
    return bytes(table)


_CLASS = _classes()
_STEP = np.array([0, 0, 0, 1, -1, 0], np.int64)  # what a class does to the depth


class JsonArray(JsonText):
    """The elements of one array in a stream of blocks."""

    def items(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of every element, blank ones (``[1,,2]``) included.

        Raises:
            BrokenFile: there is no array, it does not end, or something follows it.
        """
        if not begun:
            blocks, at = _after_bracket(blocks, at)
        splitter = _Splitter()
        element = Gathered(self.max_record, _BLANK)
        separated = False
        for block in blocks:
            cuts, end = splitter.feed(block)
            start = 0
            for cut in cuts:
                element.add(block[start:cut])
                nbytes = element.nbytes
                yield _element(element.take(), at)
                at += nbytes + 1
                start, separated = cut + 1, True
            element.add(block[start:end])
            if end is not None:
                last = element.take()
                if separated or last.strip(_BLANK):
                    yield _element(last, at)
                _check_rest(block[end + 1 :], blocks)
                return
        raise BrokenFile(
            f"the JSON array is cut: it ends inside the element that begins at byte {at}; restore "
            "the file, or close the array behind its last whole element"
        )


def _element(raw: bytes, at: int) -> tuple[int, bytes]:
    if isinstance(raw, TooLarge):
        return at, raw
    body = raw.lstrip(_BLANK)
    return at + len(raw) - len(body), body.rstrip(_BLANK)


def _after_bracket(blocks: Iterator[bytes], at: int) -> tuple[Iterator[bytes], int]:
    """The blocks from behind the array's opening bracket, and their offset."""
    head = b""
    for block in blocks:
        head += block
        if not head.startswith(BOM[: len(head)]) or len(head) >= len(BOM):
            body = head.removeprefix(BOM).lstrip(_BLANK)
            if body:
                if not body.startswith(b"["):
                    break
                rest = body[1:]
                return itertools.chain([rest], blocks), at + len(head) - len(rest)
    raise BrokenFile("there is no JSON array in it: its first character must be [")


def _check_rest(rest: bytes, blocks: Iterator[bytes]) -> None:
    for block in (rest, *([] if rest.strip(_BLANK) else blocks)):
        if block.strip(_BLANK):
            raise BrokenFile(
                "something follows the JSON array's closing bracket: a .json file holds one array, "
                "or one object a line"
            )


class _Splitter:
    """Finds the commas between an array's elements, block by block."""

    def __init__(self) -> None:
        self._in_string = 0
        self._escaped = False  # the next block's first byte
        self._depth = 1

    def feed(self, block: bytes) -> tuple[list[int], int | None]:
        """Positions in `block` of the separating commas, and of the array's end if it is here."""
        kinds = np.frombuffer(block.translate(_CLASS), np.uint8)
        at: Positions = np.flatnonzero(kinds != 0)
        kind: Positions = kinds[at]
        at, kind = self._without_escaped(at, kind, len(block))
        inside: Positions = np.cumsum(kind == _QUOTE) + self._in_string & 1
        step = np.where(inside, 0, _STEP[kind])
        depth: Positions = self._depth + np.cumsum(step)
        ends = np.flatnonzero(depth == 0)
        if len(ends):
            last = int(ends[0]) + 1  # behind it there is no array any more
            at, kind, inside, depth = at[:last], kind[:last], inside[:last], depth[:last]
        commas = at[(kind == _COMMA) & (inside == 0) & (depth == 1)]
        if len(at):
            self._in_string, self._depth = int(inside[-1]), int(depth[-1])
        return commas.tolist(), int(at[-1]) if len(ends) else None

    def _without_escaped(
        self, at: Positions, kind: Positions, length: int
    ) -> tuple[Positions, Positions]:
        """The structural characters that no backslash stands before."""
        if self._escaped and len(at) and at[0] == 0:
            at, kind = at[1:], kind[1:]
        self._escaped = False
        escapes = at[kind == _ESCAPE]
        if not len(escapes):
            return at, kind
        first = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)  # of each run of backslashes
        lengths = np.diff(first, append=len(escapes))
        escaped = (escapes[first] + lengths)[lengths % 2 == 1]
        self._escaped = bool(len(escaped)) and int(escaped[-1]) == length
        nearest = np.searchsorted(escaped, at)
        hit = escaped[np.minimum(nearest, len(escaped) - 1)] == at if len(escaped) else at < 0
        keep = ~hit & (kind != _ESCAPE)
        return at[keep], kind[keep]
