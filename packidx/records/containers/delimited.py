"""CSV and TSV with a line of column names. Quoted cells may hold delimiters, quotes and newlines;
a TSV has no quotes.

Cells are text; what a cell means (a JSON list of messages, a number of tokens) is for `Layout` to
say. Empty cells are left out of the record.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Any

from packidx.errors import BadRecord
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import MAX_RECORD, TooLarge, size_of
from packidx.records.containers.compressed import Text
from packidx.records.containers.lines import whole_lines

# The module's limit of 128 KiB a cell is a single one for the process; a chat may be longer.
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))


class Delimited(Text):
    """Records of a table in text.

    Args:
        delimiter: one character.
        quoted: whether a cell in quotes is what stands between them; else they are its characters.
        max_record: bytes of a record; a quote that is open for longer was never meant to be one.
    """

    def __init__(
        self, delimiter: str, max_record: int = MAX_RECORD, *, quoted: bool = True
    ) -> None:
        super().__init__(max_record)
        self.delimiter, self.quoted = delimiter, quoted

    @property
    def name(self) -> str:
        return f"{type(self).__name__} {self.delimiter}{self.quoted}"

    def header(self, blocks: Iterator[bytes]) -> tuple[str, ...]:
        """The column names.

        Raises:
            BrokenFile: there is no header, or its names are empty or not unique.
        """
        for _, _, cells in self._rows(blocks, 0, False):
            try:
                names = _texts(cells, "")
            except BadRecord as error:
                raise BrokenFile(f"its first line has no column names: {error.detail}") from None
            if "" in names or len(set(names)) < len(names):
                raise BrokenFile(
                    f"its first line must give every column a name of its own, not {names!r:.200}"
                )
            return tuple(names)
        raise BrokenFile("it is empty: its first line must name the columns")

    def items(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of every record; blank lines between them are skipped."""
        for offset, raw, _ in self._records(blocks, at, begun):
            yield offset, raw

    def records(
        self, blocks: Iterator[bytes], at: int, begun: bool, header: tuple[str, ...]
    ) -> Iterator[tuple[int, int, dict[str, Any] | BadRecord]]:
        """(offset, bytes, record) of every record."""
        for offset, raw, cells in self._records(blocks, at, begun):
            try:
                yield offset, len(raw), _record(cells, header, "")
            except BadRecord as error:
                yield offset, len(raw), error.with_traceback(None)

    def decode(self, raw: bytes, where: str, header: tuple[str, ...]) -> dict[str, Any]:
        """The record's cells by column name, without the empty ones.

        Raises:
            BadRecord: ``bad_utf8`` or ``bad_row``.
        """
        for _, _, cells in self._rows(iter([raw]), 0, True):
            return _record(cells, header, where)
        raise BadRecord("bad_row", f"the row is blank{where}")

    def _records(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[_Row]:
        rows = self._rows(blocks, at, begun)
        if not begun:
            next(rows, None)
        return rows

    def _rows(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[_Row]:
        """Whole records: the reader takes as many lines for each as its quotes span."""
        if not self.quoted:
            for offset, line in whole_lines(blocks, at, begun, self.max_record):
                if isinstance(line, TooLarge):
                    raise BrokenFile(_endless(offset, size_of(line), True))
                raw = line.removesuffix(b"\n").removesuffix(b"\r")
                if not raw.isspace() and raw:
                    yield offset, raw, raw.decode("latin-1").split(self.delimiter)
            return
        taken: list[bytes] = []
        lines = whole_lines(blocks, at, begun, self.max_record)
        start = at

        def lines_of() -> Iterator[str]:
            nonlocal start
            size = 0
            for offset, line in lines:
                if not taken:
                    start, size = offset, 0
                size += size_of(line)
                if size > self.max_record:
                    raise BrokenFile(_endless(start, size, isinstance(line, TooLarge)))
                taken.append(line)
                yield line.decode("latin-1")  # any bytes will do to find the quotes

        reader = csv.reader(lines_of(), delimiter=self.delimiter, strict=True)
        while True:
            cells: list[str] | csv.Error
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = _explained(error, len(taken), start)
            raw = b"".join(taken)
            taken.clear()
            if cells and not raw.isspace():
                yield start, raw.removesuffix(b"\n").removesuffix(b"\r"), cells


def _endless(start: int, size: int, is_line: bool) -> str:
    """Why a table cannot be cut into records from here on: any byte of this one may be a quote."""
    if is_line:
        return (
            f"the row at byte {start} takes {size:,} bytes to its line's end: restore the file, or "
            "write its media to files"
        )
    return (
        f"a quote in the record at byte {start} is not closed within {size:,} bytes: close it, or "
        "double quotes that mean themselves"
    )


def _explained(error: csv.Error, num_lines: int, start: int) -> csv.Error:
    """Why a record has no cells, in a user's words.

    Raises:
        BrokenFile: a quote is open from here to the file's end: who knows how many records it took.
    """
    if "unexpected end" not in str(error):
        lines = f" (it takes {num_lines} lines)" if num_lines > 1 else ""
        return csv.Error(f"{error}{lines}")
    if num_lines > 1:
        raise BrokenFile(
            f"a quote in the record at byte {start} is not closed, and takes all of the last "
            f"{num_lines} lines: close it, double quotes that mean themselves, or restore the file"
        )
    return csv.Error("one is not closed, as where a file is cut")


_Row = tuple[int, bytes, list[str] | csv.Error]
"""Offset, bytes without the newline, and the cells, a character a byte, or why there are none."""


def _record(cells: list[str] | csv.Error, header: tuple[str, ...], where: str) -> dict[str, Any]:
    texts = _texts(cells, where)
    if len(texts) != len(header):
        raise BadRecord(
            "bad_row", f"the row has {len(texts)} cells for {len(header)} columns{where}"
        )
    return {name: text for name, text in zip(header, texts, strict=True) if text != ""}


def _texts(cells: list[str] | csv.Error, where: str) -> list[str]:
    if isinstance(cells, csv.Error):
        raise BadRecord("bad_row", f"the row's quotes are wrong: {cells}{where}")
    try:
        return [cell if cell.isascii() else cell.encode("latin-1").decode() for cell in cells]
    except UnicodeDecodeError:
        raise BadRecord("bad_utf8", f"a cell is not UTF-8{where}") from None
