"""Values put into a JSON object or a row of CSV without touching any other byte of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

# Numbers stay text: only where they end is asked, and of no size is one too long for that.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_BLANK = " \t\r\n"
_QUOTE = b'"'
_ENDS = b"\r\n"


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


class Cells:
    """Two or more named cells of each row of one table; those that it lacks become its last."""

    def __init__(
        self, header: Sequence[str], names: Sequence[str], delimiter: str, quoted: bool = True
    ) -> None:
        self._num_columns = len(header)
        self._delimiter, self._quoted = delimiter.encode(), quoted
        self._names = names
        self._places = [header.index(name) if name in header else None for name in names]

    def header(self, raw: bytes) -> bytes:
        """The header's bytes with the names of new columns."""
        new = [name for name, at in zip(self._names, self._places, strict=True) if at is None]
        return self._with_end(raw, new)

    def row(self, raw: bytes, texts: Sequence[str | None]) -> bytes:
        """A row's bytes with its cells set.

        Args:
            raw: a row without its newline.
            texts: one per name; None leaves a cell as it is, or a new one empty.

        Returns:
            `raw` itself where it has not as many cells as the table has columns.
        """
        spans = cell_spans(raw, self._delimiter, self._quoted)
        if len(spans) != self._num_columns:
            return raw
        pieces: list[bytes] = []
        done = 0
        chosen = [
            (*spans[at], text)
            for at, text in zip(self._places, texts, strict=True)
            if at is not None and text is not None
        ]
        for start, end, text in sorted(chosen):
            pieces += (raw[done:start], self._cell(text))
            done = end
        new = [text or "" for at, text in zip(self._places, texts, strict=True) if at is None]
        return self._with_end(b"".join((*pieces, raw[done:])), new)

    def _with_end(self, raw: bytes, texts: Sequence[str]) -> bytes:
        body = raw.rstrip(_ENDS)  # a quoted cell ends in a quote
        cells = (self._delimiter + self._cell(text) for text in texts)
        return b"".join((body, *cells, raw[len(body) :]))

    def _cell(self, text: str) -> bytes:
        cell = text.encode()
        if self._quoted and any(
            special in cell for special in (self._delimiter, _QUOTE, b"\n", b"\r")
        ):
            return _QUOTE + cell.replace(_QUOTE, _QUOTE * 2) + _QUOTE
        return cell


def cell_spans(raw: bytes, delimiter: bytes, quoted: bool = True) -> list[tuple[int, int]]:
    """(start, end) of each cell of a row, quotes included; none where a quote is not closed."""
    body = len(raw.rstrip(_ENDS))
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        start, at = at, _cell_end(raw, at, body, delimiter, quoted)
        if at < 0 or (at < body and raw[at : at + 1] != delimiter):
            return []
        spans.append((start, at))
        if at == body:
            return spans
        at += 1


def _cell_end(raw: bytes, at: int, body: int, delimiter: bytes, quoted: bool) -> int:
    if not quoted or raw[at : at + 1] != _QUOTE:
        end = raw.find(delimiter, at, body)
        return body if end < 0 else end
    at += 1
    while (close := raw.find(_QUOTE, at, body)) >= 0:
        if raw[close + 1 : close + 2] != _QUOTE:
            return close + 1
        at = close + 2
    return -1
