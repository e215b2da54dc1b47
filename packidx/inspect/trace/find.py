"""Rows of a snapshot's tables by key or sample id: one filtered scan of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from packidx.errors import OptionError
from packidx.index.reader import Index
from packidx.index.tables import Views
from packidx.inspect.sql import connect

MOST = 100
"""Samples of one key that are told."""
_NEAR = 3
_SHORTEST = 3  # letters of a key that another one contains


class Found(NamedTuple):
    """A row of `samples`: a piece of a sample in a pack."""

    sample_id: int
    copy: int
    piece: int
    pack_id: int
    position: int
    token_start: int
    length: int
    source: str | None
    key: str | None
    shard: int | None
    row: int | None


class FoundDropped(NamedTuple):
    """A row of `dropped`."""

    sample_id: int
    source: str | None
    key: str | None
    length: int | None
    reason: str
    detail: str | None


class Wanted(NamedTuple):
    """What is looked for, as SQL has it."""

    where: str
    values: dict[str, Any]


def by_key(key: str, source: str | None) -> Wanted:
    """Samples of a key, of one source or of all."""
    if source is None:
        return Wanted("key = $key", {"key": key})
    return Wanted("key = $key AND source = $source", {"key": key, "source": source})


def by_ids(ids: Sequence[int]) -> Wanted:
    """Samples of these ids."""
    return Wanted(f"sample_id IN ({', '.join(map(str, ids))})", {})


def packed(index: Index, wanted: Wanted) -> list[Found]:
    """Rows of `samples`, by sample and pack.

    Raises:
        OptionError: they are of more than `MOST` samples.
    """
    return [Found(*row) for row in _rows(index, "samples", Found._fields, wanted)]


def dropped(index: Index, wanted: Wanted) -> list[FoundDropped]:
    """Rows of `dropped`, by sample."""
    return [FoundDropped(*row) for row in _rows(index, "dropped", FoundDropped._fields, wanted)]


def _rows(
    index: Index, table: str, columns: Sequence[str], wanted: Wanted
) -> list[tuple[Any, ...]]:
    with index.local_files(table) as files:
        connection = connect(Views({table: files}), True, None)
        count = f"SELECT count(DISTINCT sample_id) FROM {table} WHERE {wanted.where}"
        matching = f"FROM {table} WHERE {wanted.where} LIMIT {MOST << 10}"
        rows = connection.execute(f"SELECT {', '.join(columns)} {matching}", wanted.values)
        found: list[tuple[Any, ...]] = sorted(rows.fetchall(), key=lambda row: row[:5])
        if len({row[0] for row in found}) > MOST:
            [(number,)] = connection.execute(count, wanted.values).fetchall()
            raise OptionError(
                f"the key {wanted.values.get('key')!r:.80} names {number:,} samples of"
                f" {index.path}@{index.id[:12]}: give the source, or a sample id"
            )
    return found


def has_keys(index: Index) -> bool:
    """Whether any sample has a key."""
    for table in ("samples", "dropped"):
        with index.local_files(table) as files:
            query = f"SELECT 1 FROM {table} WHERE key IS NOT NULL LIMIT 1"
            if connect(Views({table: files}), True, None).execute(query).fetchall():
                return True
    return False


def near_keys(index: Index, key: str) -> tuple[str, ...]:
    """The keys most like one that is not there, at most three: those that hold it, those that
    differ in few letters, and those that it holds."""
    most = max(1, len(key) // 4)
    distance = (
        "CASE WHEN contains(lower(key), lower($key)) THEN 0 "
        f"WHEN abs(length(key) - length($key)) <= {most} THEN levenshtein(key, $key) "
        f"WHEN length(key) >= {_SHORTEST} AND contains(lower($key), lower(key)) THEN {most} "
        f"ELSE {most + 1} END"
    )
    near: dict[str, int] = {}
    for table in ("samples", "dropped"):
        with index.local_files(table) as files:
            rows = connect(Views({table: files}), True, None).execute(
                f"SELECT key, min(distance) AS least FROM (SELECT key, {distance} AS distance "
                f"FROM {table} WHERE key IS NOT NULL) WHERE distance <= {most} GROUP BY key "
                f"ORDER BY least, abs(length(key) - length($key)), key LIMIT {_NEAR}",
                {"key": key},
            )
            near |= dict(rows.fetchall())
    ascending = sorted(near, key=lambda name: (near[name], abs(len(name) - len(key)), name))
    return tuple(ascending[:_NEAR])
