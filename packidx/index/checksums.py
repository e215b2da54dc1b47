"""What a reader of single rows checks: the CRC-32 of each row group of a file, and of its footer.

A file's SHA-256 says whether all of it is right, but who looks a pack up reads a hundredth of it.
So the manifest has `crc32`, eight hex digits for each row group and eight for the footer: of the
bytes from the end of the range before, so that every byte of the file is in one of them.
"""

from __future__ import annotations

import hashlib
import zlib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError

_END = 8  # bytes behind the footer: its length, and "PAR1"


def file_checksums(path: str | Path) -> tuple[str, str]:
    """SHA-256 of a Parquet file, and the CRC-32 of its ranges, both in hex."""
    hasher, crcs = hashlib.sha256(), []
    with pa.OSFile(str(path)) as file:
        bounds = _bounds(pq.read_metadata(file), file.size(), _footer_start(file))
        for start, stop in pairwise(bounds):
            block = file.read_at(stop - start, start)
            hasher.update(block)
            crcs.append(f"{zlib.crc32(block):08x}")
    return hasher.hexdigest(), "".join(crcs)


class CheckedFile:
    """A Parquet file whose row groups are compared with the manifest before they are decoded.

    Args:
        path: of its content on this machine.
        name: where it is, for errors.
        crc32: what the manifest says.
        repeated: columns to read as dictionaries.

    Raises:
        FormatError: the footer is another one.
        OSError, pa.ArrowException: it cannot be read.
    """

    def __init__(self, path: str, name: str, crc32: str, repeated: list[str]) -> None:
        self._name, self._crc32 = name, crc32
        self._file = pa.OSFile(path)
        size, footer = self._file.size(), _footer_start(self._file)
        self._check(footer, size, -8, "the footer")
        self.parquet = pq.ParquetFile(self._file, read_dictionary=repeated, pre_buffer=False)
        self._bounds = _bounds(self.parquet.metadata, size, footer)
        if len(crc32) != 8 * self.parquet.metadata.num_row_groups + 8:
            raise self._damaged("other row groups than")

    def check(self, group: int) -> None:
        """Compare a row group with the manifest.

        Raises:
            FormatError: it is another one.
        """
        start, stop = self._bounds[group : group + 2]
        self._check(start, stop, 8 * group, f"row group {group}")

    def _check(self, start: int, stop: int, at: int, what: str) -> None:
        stated = self._crc32[at:][:8]
        if f"{zlib.crc32(self._file.read_at(stop - start, start)):08x}" != stated:
            raise self._damaged(f"{what} has other content than")

    def _damaged(self, what: str) -> FormatError:
        return FormatError(
            f"{self._name} is damaged ({what} the manifest's crc32): `packidx verify` tells more;"
            " plan again"
        )


def _footer_start(file: pa.NativeFile) -> int:
    """Return where the footer begins, as the file's end says; 0 where it says nothing that can
    be."""
    size = file.size()
    if size < _END:
        return 0
    length: int = int.from_bytes(file.read_at(4, size - _END), "little")
    return int(max(0, size - _END - length))


def _bounds(metadata: pq.FileMetaData, size: int, footer: int) -> list[int]:
    """Return where each row group begins, then the footer, and the end of the file."""
    starts = []
    for number in range(metadata.num_row_groups):
        column = metadata.row_group(number).column(0)
        first = column.dictionary_page_offset if column.has_dictionary_page else None
        starts.append(column.data_page_offset if first is None else first)
    return [0, *starts[1:], footer, size] if starts else [0, size]
