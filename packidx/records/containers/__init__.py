"""Containers: the kinds of files that hold records, by name.

A kind is a name as the manifest has it (``'jsonl'``, ``'json'``, ``'csv.gz'``, ``'parquet'`` …);
`container` gives what scans and reads such a file.
"""

from __future__ import annotations

from packidx.records.containers.base import (
    Container,
    RawRecord,
    RecordRange,
    ShardScan,
)
from packidx.records.containers.registry import (
    DEFAULT,
    KINDS,
    SUFFIXES,
    container,
    kind_of,
    strip_suffix,
)

__all__ = ["DEFAULT", "KINDS", "SUFFIXES", "Container", "RecordRange", "RawRecord", "ShardScan"]
__all__ += ["container", "kind_of", "strip_suffix"]
