"""Cells put into a row of CSV or TSV without touching any other byte of it."""

from __future__ import annotations

from collections.abc import Sequence

_QUOTE = b'"'
_ENDS = b"\r\n"


class Cells:
    """Two or more named cells of each row of one table.

    Args:
        header: the table's column names.
        names: of the cells that are set; those that the table lacks become its last columns.
        delimiter: between cells.
    """

    def __init__(self, header: Sequence[str], names: Sequence[str], delimiter: str) -> None:
        self._num_columns = len(header)
        self._delimiter = delimiter.encode()
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
        spans = cell_spans(raw, self._delimiter)
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
        if any(special in cell for special in (self._delimiter, _QUOTE, b"\n", b"\r")):
            return _QUOTE + cell.replace(_QUOTE, _QUOTE * 2) + _QUOTE
        return cell


def cell_spans(raw: bytes, delimiter: bytes) -> list[tuple[int, int]]:
    """(start, end) of each cell of a row, quotes included; none where a quote is not closed."""
    body = len(raw.rstrip(_ENDS))
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        start, at = at, _cell_end(raw, at, body, delimiter)
        if at < 0 or (at < body and raw[at : at + 1] != delimiter):
            return []
        spans.append((start, at))
        if at == body:
            return spans
        at += 1


def _cell_end(raw: bytes, at: int, body: int, delimiter: bytes) -> int:
    if raw[at : at + 1] != _QUOTE:
        end = raw.find(delimiter, at, body)
        return body if end < 0 else end
    at += 1
    while (close := raw.find(_QUOTE, at, body)) >= 0:
        if raw[close + 1 : close + 2] != _QUOTE:
            return close + 1
        at = close + 2
    return -1
