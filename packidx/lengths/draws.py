"""By what samples are drawn: their sources and places in them, which no other source shifts.

A sample of a table that says which shards it was counted of stands in the n-th shard of its source,
at a row; one of a bare table at its place among the rows of its source. So records that are added
to a source, or a source that is added, change no draw of another one, and what is appended to a
source no draw of what it had.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s, Uint64s
from packidx.hashing import hash_strings

if TYPE_CHECKING:
    from packidx.format.manifest import Shard
    from packidx.lengths.rows import LengthsRows
    from packidx.lengths.table import Lengths

_RUN = 1 << 22  # rows of a bare table whose sources are counted at a time


class Places:
    """Where the samples of a table stand in their sources."""

    def __init__(self, table: Lengths) -> None:
        self._table = table
        self._counted, self._before = 0, Counter[str | None]()

    def draws(self, rows: LengthsRows) -> Uint64s:
        """uint64 [n], the number that each of `rows` is drawn by; of the sides of a pair, one."""
        if self._shards:
            shard, row = (rows.ints(name)[0] for name in ("shard", "row"))
            return self._salts.take(shard, mode="clip") ^ row.view(np.uint64)
        place = np.arange(rows.start, rows.start + rows.num_rows)
        salts = np.zeros(rows.num_rows, np.uint64)
        if "source" in rows.frame.columns:
            source = rows.frame.get_column("source")
            place = rows.frame.select(pl.int_range(pl.len()).over("source")).to_series().to_numpy()
            place = place + self._rows_before(rows.start, source)
            salts = hash_strings(rows.arrow("source").dictionary_encode())
        place[rows.chosen + 1] = place[rows.chosen]
        return salts ^ place.view(np.uint64)

    def own_keys(self, rows: LengthsRows) -> pa.Array | None:
        """The keys of `rows`, null where a record has no name of its own: a key that is made of its
        shard's name changes with the other shards' names."""
        if "key" not in rows.frame.columns:
            return None
        keys = rows.arrow("key")
        if not self._shards:
            return keys
        shard, row = (pl.Series(rows.ints(name)[0]) for name in ("shard", "row"))
        names = pl.Series([f"{posixpath.basename(shard.uri)}#" for shard in self._shards])
        made = names.gather(shard.clip(0, len(names) - 1)) + row.cast(pl.String)
        ends = pl.col("key").str.ends_with(pl.lit(made)).fill_null(True)
        is_made = rows.frame.select(ends).to_series()
        return pc.if_else(is_made.to_arrow(), pa.scalar(None, keys.type), keys)

    @cached_property
    def _shards(self) -> tuple[Shard, ...]:
        return self._table.shards

    @cached_property
    def _salts(self) -> Uint64s:
        """uint64 [shards], of each one's source and number in it."""
        numbers: Counter[str] = Counter()
        texts = []
        for shard in self._shards:
            texts.append(f"{numbers[shard.source]} {shard.source}")
            numbers[shard.source] += 1
        return hash_strings(pa.array(texts, pa.string()))

    def _rows_before(self, start: int, source: pl.Series) -> Int64s:
        """int64 [n]: how many rows before row `start` have the source of each row."""
        if start < self._counted:
            self._counted, self._before = 0, Counter()
        while self._counted < start:
            stop = min(start, self._counted + _RUN)
            rows = self._table.read(self._counted, stop, ["source"])
            self._before.update(dict(rows.frame.get_column("source").value_counts().rows()))
            self._counted = stop
        before = np.zeros(len(source), np.int64)
        for name, number in self._before.items():
            before[source.eq_missing(name).to_numpy()] = number
        return before
