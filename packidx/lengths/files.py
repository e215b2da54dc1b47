"""What the footers of a lengths table's files say: columns, row groups, order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, SourceError
from packidx.format.lengths import HELP
from packidx.format.schema import ALL_LENGTHS
from packidx.io import urls
from packidx.io.copies import StoredFile, local_copy
from packidx.io.ranges import open_range


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: where it lies, and the row of the table it begins with."""

    file: int
    number: int
    start: int


def groups_in_order(footers: list[pq.FileMetaData], have_ids: bool) -> list[RowGroup] | None:
    """The row groups of a table's files; None where their sample ids overlap or are unknown.

    Args:
        have_ids: whether the table has sample ids, which then give the order.
    """
    stored = [
        (number, group, footer.row_group(group))
        for number, footer in enumerate(footers)
        for group in range(footer.num_row_groups)
        if footer.row_group(group).num_rows
    ]
    if have_ids:
        ranges = [_id_range(meta) for _, _, meta in stored]
        known = [ids for ids in ranges if ids is not None]
        if len(known) < len(ranges):
            return None
        order = sorted(range(len(stored)), key=lambda at: (known[at], stored[at][:2]))
        if any(known[a][1] >= known[b][0] for a, b in pairwise(order)):
            return None
        stored = [stored[at] for at in order]
    groups, start = [], 0
    for number, group, meta in stored:
        groups.append(RowGroup(number, group, start))
        start += meta.num_rows
    return groups


def known_names(uri: str, path: str, footer: pq.FileMetaData) -> set[str]:
    """Columns of one file, which must have `length` and none of the known ones twice."""
    names = footer.schema.to_arrow_schema().names
    if "length" not in names:
        where = "" if uri == path else f": {os.path.basename(path)} has none"
        raise FormatError(f"{uri} has no column `length`{where}; {HELP}")
    for name in ALL_LENGTHS.names:
        if names.count(name) > 1:
            raise FormatError(f"{path} has the column `{name}` twice: keep one")
    return set(names)


def read_footer(file: StoredFile) -> pq.FileMetaData:
    """The footer of a file, which has the content that its manifest states.

    Raises:
        FormatError: it has another one.
        SourceError: it is no Parquet.
    """
    if not urls.is_url(file.path):
        # Compared first: a damaged footer may take the whole process down in Arrow.
        with local_copy(file) as path, readable(file.path):
            return pq.read_metadata(path)
    with open_range(file.path, 0, file.nbytes) as opened, readable(file.path):
        return pq.read_metadata(opened)


@contextlib.contextmanager
def readable(uri: str) -> Iterator[None]:
    """What Arrow says of a file that is damaged, as a SourceError."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SourceError(f"{uri} cannot be read as Parquet ({reason}); {HELP}") from None


def _id_range(group: pq.RowGroupMetaData) -> tuple[int, int] | None:
    """Lowest and highest sample_id of a row group, where its statistics have them."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "sample_id":
            seen = column.statistics
            if seen is None or not seen.has_min_max or seen.null_count:
                return None
            low, high = seen.min, seen.max
            return (low, high) if isinstance(low, int) and isinstance(high, int) else None
    return None
