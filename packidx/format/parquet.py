"""SQL that reads Parquet files by their literal names, as DuckDB has it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

# What makes DuckDB take a path for a pattern; between brackets it stands for itself.
_MARK = re.compile(r"[\[*?]")


def scan_of(files: Iterable[str | Path]) -> str:
    """A table function over `files`, to stand behind ``FROM``.

    A file is the one of that very name, and its columns are those in it: no mark in a path makes a
    pattern, no ``~`` a home folder, and no folder named ``a=1`` a column.
    """
    listed = ", ".join(quoted(pattern_of(file)) for file in files)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def pattern_of(file: str | Path) -> str:
    """The pattern that `file` alone matches."""
    return _MARK.sub(r"[\g<0>]", os.path.abspath(file))


def quoted(text: str) -> str:
    """`text` as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
