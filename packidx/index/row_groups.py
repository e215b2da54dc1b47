"""Rows of a table by number: one row group decoded at a time, all that is kept bounded in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError
from packidx.format.index import TableFile
from packidx.format.parquet import footer_crc
from packidx.io import urls
from packidx.io.cache import StoredFile, local_copy
from packidx.io.files import refuse_open_files
from packidx.recent import Recent

# Of the footers a process keeps of one table, counted as they are in the files: parsed, they take
# ten times as much, 6 MB for 512 row groups of 16 columns, and 8 µs per KB (pyarrow 26).
FOOTER_BYTES = 1 << 18

# Read as dictionaries, a quarter of the time: a row group holds few different ones.
_REPEATED = {"source", "group"}

Column = Callable[[int, int], list[Any]]
"""``column(start, stop)``: the values in these rows of a row group, as Python objects."""


class RowGroups:
    """Random access to the rows of a table that lies in several Parquet files.

    Files are opened when they are first asked for, read with pread and decoded without threads:
    what a forked worker inherits is safe to use. So would a memory map be, but every page that was
    ever touched would count as the process's own. Threads may share an instance.

    Args:
        paths: the table's files, in order.
        files: what the manifest says of each. Its footer is compared with it, pages with their
            own checksums.
        names: columns to read; what else a file has is not looked at.
        decoded_bytes: of decoded row groups that are kept; the newest is in any case.
        footer_bytes: of footers that are kept parsed; the newest is in any case.
        optional: of the names, those that a file may lack: null then.

    Attributes:
        opened: files that are kept open.
        decoded: row groups that are kept decoded.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        files: Sequence[TableFile],
        names: Sequence[str],
        decoded_bytes: int,
        footer_bytes: int = FOOTER_BYTES,
        optional: Sequence[str] = (),
    ) -> None:
        self._paths, self._files, self._names = paths, files, list(names)
        self._optional = optional
        self._starts = list(accumulate((file.rows for file in files), initial=0))
        self.num_rows = self._starts.pop()
        self._bounds: dict[int, list[int]] = {}  # of row groups, kept when a footer is not
        self.opened: Recent[int, pq.ParquetFile] = Recent(footer_bytes)
        self.decoded: Recent[tuple[int, int], list[Column]] = Recent(decoded_bytes)

    def read(self, first: int, count: int) -> list[list[Any]]:
        """Rows first .. first + count - 1, at least one, as a list for each of `names`.

        Raises:
            IndexError: the table has no such rows.
            FormatError: a file is damaged, or is not what the manifest says.
        """
        if first < 0 or count < 1 or first + count > self.num_rows:
            raise IndexError(f"rows {first} to {first + count - 1} of {self.num_rows}")
        parts: list[list[list[Any]]] = []
        while count:
            group, start, rows = self._group_of(first)
            stop = min(rows, start + count)
            parts.append([column(start, stop) for column in group])
            first, count = first + stop - start, count - (stop - start)
        return parts[0] if len(parts) == 1 else [sum(p, []) for p in zip(*parts, strict=True)]

    def _group_of(self, row: int) -> tuple[list[Column], int, int]:
        """The row group that holds `row`, where in it that is, and how many rows it has."""
        number = bisect_right(self._starts, row) - 1
        inside = row - self._starts[number]
        if number not in self._bounds:
            self._open_file(number)
        bounds = self._bounds[number]
        at = bisect_right(bounds, inside) - 1
        group = self.decoded.get((number, at))
        if group is None:
            group = self._decode_group(number, at)
        return group, inside - bounds[at], bounds[at + 1] - bounds[at]

    def _decode_group(self, number: int, at: int) -> list[Column]:
        file = self._open_file(number)

        def columns(_: str) -> tuple[list[Column], int]:
            table = file.read_row_group(at, columns=self._names, use_threads=False)
            absent = set(self._optional) - set(table.column_names)
            decoded = [
                _read_nulls if name in absent else _column_reader(table.column(name))
                for name in self._names
            ]
            return decoded, table.nbytes

        group: list[Column]
        group, size = read_as_format(self._paths[number], "", columns)
        self.decoded.put((number, at), group, size)
        return group

    def _open_file(self, number: int) -> pq.ParquetFile:
        file = self.opened.get(number)
        if file is None:
            path, stated = str(self._paths[number]), self._files[number]
            is_remote = urls.is_url(path)
            copy = local_copy(StoredFile(path, stated.bytes, stated.sha256)) if is_remote else path
            repeated = [name for name in self._names if name in _REPEATED]
            options = {"footer": stated.footer, "repeated": repeated}
            file = read_as_format(path, copy, _open_parquet, **options)
            metadata = file.metadata
            groups = (metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))
            self._bounds[number] = list(accumulate(groups, initial=0))
            self.opened.put(number, file, metadata.serialized_size)
        return file


def _open_parquet(path: str, footer: str, repeated: list[str]) -> pq.ParquetFile:
    """Open a file whose footer has the CRC-32 that its manifest says: Arrow checks none itself."""
    file = pa.OSFile(path)
    if footer_crc(file) != footer:
        raise pa.ArrowInvalid("its footer is another one than its manifest says")
    return pq.ParquetFile(
        file, read_dictionary=repeated, pre_buffer=False, page_checksum_verification=True
    )


def read_as_format(path: str | Path, copy: str, read: Callable[..., Any], **options: Any) -> Any:
    """``read(copy)``, its errors as a FormatError that names the file at `path`."""
    try:
        return read(copy, **options)
    except KeyError as error:
        raise FormatError(f"{path} lacks a column ({error.args[0]}); plan again") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        refuse_open_files(error)
        words = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{path} is damaged or missing ({words}): `packidx verify` tells more; plan again"
        ) from None


def _read_nulls(start: int, stop: int) -> list[Any]:
    return [None] * (stop - start)


def _column_reader(chunked: pa.ChunkedArray) -> Column:
    """Quick access to the values of a column by row number."""
    array = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
    if array.null_count == len(array):
        return _read_nulls
    if pa.types.is_integer(array.type) and not array.null_count:
        values = array.to_numpy()
        return lambda start, stop: values[start:stop].tolist()
    if pa.types.is_dictionary(array.type):
        array.validate(full=True)  # a damaged page header may leave words out
        words, codes = (
            array.dictionary.to_pylist(),
            _column_reader(pa.chunked_array([array.indices])),
        )
        return lambda start, stop: [None if c is None else words[c] for c in codes(start, stop)]
    return lambda start, stop: array.slice(start, stop - start).to_pylist()
