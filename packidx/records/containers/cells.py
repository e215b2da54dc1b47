"""CSV and TSV: a record a row, under the names in the first row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO, Any

from packidx.errors import BadRecord
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.lines import skip_bom

# The module's limit of 128 KiB a cell is a single one for the process; a chat may be longer.
csv.field_size_limit(1 << 28)


def cell_records(
    file: IO[bytes], delimiter: str, is_quoted: bool
) -> Iterator[dict[str, str] | BadRecord]:
    """Yield the records of a table: cells are text, and none is empty.

    Raises:
        BrokenFile: there is no header, its names are empty or not unique, or a quote is not closed.
    """
    skip_bom(file)
    lines = (line.decode("utf-8", "surrogateescape") for line in file)
    options: dict[str, Any] = {} if is_quoted else {"quoting": csv.QUOTE_NONE}
    rows = csv.reader(lines, delimiter=delimiter, strict=True, **options)
    names: list[str] = []
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            if "unexpected end" in str(error) or "limit" in str(error):
                line = f"a quote in the last lines up to line {rows.line_num} is not closed"
                raise BrokenFile(f"{line} ({error}): close it, or restore the file") from None
            yield BadRecord("bad_row", f"line {rows.line_num}: {error}")
            continue
        if not "".join(cells).strip():
            continue
        if not names:
            names = cells
            if "" in names or len(set(names)) < len(names):
                raise BrokenFile(
                    f"its first line must give every column a name of its own, not {names!r:.200}"
                )
        elif len(cells) != len(names):
            what = f"the row has {len(cells)} cells for {len(names)} columns"
            yield BadRecord("bad_row", what)
        else:
            yield {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
    if not names:
        raise BrokenFile("it is empty: its first line must name the columns")
