"""The samples of two plans side by side, in DuckDB: each matched with itself.

Tables that are made here: ``a`` and ``b`` (every sample of a plan's lengths: what matches it, and
what became of it), ``places_a`` and ``places_b`` (its packs), ``matched`` (`a` and `b` joined).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import duckdb

from packidx.format.parquet import quoted
from packidx.index.reader import Index
from packidx.index.tables import Views
from packidx.inspect.places import first_ids
from packidx.inspect.query import connect

NAMES = ("a", "b")


@contextlib.contextmanager
def opened(a: Index, b: Index) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with ``a``, ``b``, ``places_a`` and ``places_b``, as long as the block."""
    with contextlib.ExitStack() as stack:
        views = {
            f"{name}_{table}": stack.enter_context(index.local_files(table))
            for name, index in zip(NAMES, (a, b), strict=True)
            for table in ("packs", "samples", "dropped")
        }
        connection = stack.enter_context(connect(Views(views), True, None))
        spilled = stack.enter_context(tempfile.TemporaryDirectory(prefix="packidx-diff-"))
        connection.execute(f"SET temp_directory = {quoted(spilled)}")
        for name, index in zip(NAMES, (a, b), strict=True):
            _load(connection, name, index)
        yield connection


def _load(connection: duckdb.DuckDBPyConnection, name: str, index: Index) -> None:
    """The tables of one plan."""
    result, shift = index.snapshot.result, int(index.snapshot.options.shift)
    if result.num_pieces == result.num_samples:  # each sample has one place
        connection.execute(
            f"CREATE VIEW places_{name} AS SELECT sample_id, pack_id FROM {name}_samples"
        )
        packed = f"""SELECT sample_id, source, key, true AS packed,
            CASE WHEN copy = 0 THEN length + {shift} END AS tokens, pack_id AS home,
            NULL::VARCHAR AS reason FROM {name}_samples"""
    else:
        connection.execute(
            f"""CREATE TABLE places_{name} AS
            SELECT DISTINCT sample_id, pack_id FROM {name}_samples"""
        )
        # In order of training: the first epoch's first copy from its first token on.
        first = "(epoch, copy, token_start, s.pack_id)"
        packed = f"""SELECT sample_id, any_value(source) AS source, any_value(key) AS key,
            true AS packed, sum(s.length) FILTER (copy = 0 AND epoch = 0) + {shift} AS tokens,
            arg_min(s.pack_id, {first}) AS home, NULL::VARCHAR AS reason
            FROM {name}_samples AS s JOIN (SELECT pack_id, epoch FROM {name}_packs) AS p
            ON s.pack_id = p.pack_id GROUP BY sample_id"""
    connection.execute(
        f"""CREATE TABLE {name} AS {packed} UNION ALL BY NAME
        SELECT sample_id, source, key, false AS packed, NULL AS tokens, NULL AS home, reason
        FROM {name}_dropped"""
    )


def matched_by(connection: duckdb.DuckDBPyConnection, a: Index, b: Index) -> str | None:
    """By what samples are matched, which ``matched`` then is; None where nothing tells them."""
    if a.snapshot.lengths.fingerprint == b.snapshot.lengths.fingerprint:
        _join(connection, ["sample_id"])
        return "sample_id"
    if all(_has_unique_keys(connection, *each) for each in zip(NAMES, (a, b), strict=True)):
        _join(connection, ["source", "key", "side"])
        return "source and key"
    firsts = [first_ids(index.snapshot) for index in (a, b)]
    if firsts[0] is not None and firsts[1] is not None:
        _locate(connection, "a", a, firsts[0])
        _locate(connection, "b", b, firsts[1])
        _join(connection, ["shard", "row"])
        return "shard and row"
    return None


def _has_unique_keys(connection: duckdb.DuckDBPyConnection, name: str, index: Index) -> bool:
    """Whether source and key name one sample each, or the two sides of a pair; ``side`` is then 1
    or 2, the chosen one's being the first, as it has the lower id."""
    layouts = {source.name: source.layout for source in index.snapshot.sources}
    paired = [key for key, layout in layouts.items() if layout and layout.pair == "both"]
    sides = "CASE WHEN list_contains($paired, coalesce(source, '')) THEN 2 ELSE 1 END"
    [(unsound,)] = connection.execute(
        f"""SELECT count(*) FROM (
            SELECT source, key FROM {name} GROUP BY source, key
            HAVING key IS NULL OR count(*) > any_value({sides}))""",
        {"paired": paired},
    ).fetchall()
    if unsound:
        return False
    connection.execute(f"ALTER TABLE {name} ADD COLUMN side INTEGER DEFAULT 1")
    if paired:
        connection.execute(
            f"""UPDATE {name} SET side = 2 WHERE sample_id IN (
                SELECT max(sample_id) FROM {name} GROUP BY source, key HAVING count(*) > 1)"""
        )
    return True


def _locate(
    connection: duckdb.DuckDBPyConnection, name: str, index: Index, firsts: list[int]
) -> None:
    """Add ``shard``, content of the shard and which of several alike, and ``row`` of the table in
    it: what has moved to another path is the same, what has changed is another."""
    seen: dict[str, int] = {}
    rows: list[tuple[str, int]] = []
    for shard, first in zip(index.snapshot.shards, firsts, strict=True):
        number = seen[shard.fingerprint] = seen.get(shard.fingerprint, 0) + 1
        if shard.rows:
            rows.append((f"{shard.fingerprint}#{number}", first))
    connection.execute("CREATE OR REPLACE TABLE shards (shard VARCHAR, first BIGINT)")
    connection.executemany("INSERT INTO shards VALUES (?, ?)", rows)
    connection.execute(
        f"""CREATE OR REPLACE TABLE {name} AS
        SELECT {name}.*, shards.shard, sample_id - shards.first AS row
        FROM {name} ASOF JOIN shards ON {name}.sample_id >= shards.first"""
    )


def _join(connection: duckdb.DuckDBPyConnection, columns: list[str]) -> None:
    on = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in columns)
    told = ", ".join(
        f"{name}.{column} AS {column}_{name}"
        for name in NAMES
        for column in ("sample_id", "packed", "tokens", "home", "reason")
    )
    connection.execute(
        f"""CREATE TABLE matched AS SELECT {told}, coalesce(a.source, b.source) AS source,
            coalesce(a.key, b.key) AS key, coalesce(a.packed, false) AS in_a,
            coalesce(b.packed, false) AS in_b
        FROM a FULL JOIN b ON {on}"""
    )
