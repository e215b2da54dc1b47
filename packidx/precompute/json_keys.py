"""Keys put into a JSON object without touching any other byte of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

# Numbers stay text: only where they end is asked, and of no size is one too long for that.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_BLANK = " \t\r\n"


def set_keys(line: bytes, values: Mapping[str, Any]) -> bytes:
    """A JSON object's bytes with these keys set: replaced where they are, else at the end.

    A key that stands there several times is replaced each time. So whichever a reader takes, it
    takes the new value; a key with escapes in it is found only beside one without, but the new one
    then stands behind it, where readers look.

    Args:
        line: one JSON object that has been decoded before, possibly with blanks around it.
        values: key → JSON value.

    Raises:
        RecursionError: it is nested too deeply to find a key in it.
    """
    absent = dict(values)
    if any(key.encode() in line for key in values):
        line, absent = _replace(line.decode(), values)
    if not absent:
        return line
    close = line.rindex(b"}")
    body = line[:close].rstrip()
    written = orjson.dumps(absent)[1:-1]
    comma = b"" if body.endswith(b"{") else b","
    gap = b" " if b'": ' in body[:200] and comma else b""  # as json.dumps writes it
    return b"".join((body, comma, gap, written, line[len(body) :]))


def _replace(text: str, values: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """`text` with the values of the keys that it has, and those that it has not."""
    absent = dict(values)
    pieces: list[str] = []
    at = 0
    for key, start, end in _members(text):
        if key in values:
            pieces += (text[at:start], orjson.dumps(values[key]).decode())
            at = end
            absent.pop(key, None)
    return "".join((*pieces, text[at:])).encode(), absent


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, start and end of its value) of each member of the outermost object."""
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
