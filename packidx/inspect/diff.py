"""`diff`: two plans side by side, and their samples matched by one full join."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import duckdb

from packidx.index import Index
from packidx.index.order import packs_per_step
from packidx.inspect.sql import Row, rows_of, tables_of

_PLAN = """CREATE TABLE plan_{name} AS
    SELECT sample_id, any_value(source) AS source, any_value(key) AS key,
        CAST(sum(length) AS BIGINT) AS tokens, 'packed' AS state
    FROM {name}_samples GROUP BY sample_id
    UNION ALL SELECT sample_id, source, key, NULL, reason FROM {name}_dropped"""
_HAS_KEYS = """SELECT coalesce(bool_and(key IS NOT NULL), true)
    AND count(*) = count(DISTINCT (source, key)) FROM plan_{name}"""
_MATCHED = """CREATE TABLE matched AS SELECT a.sample_id AS id_a, b.sample_id AS id_b,
    coalesce(a.source, b.source) AS source, coalesce(a.key, b.key) AS key,
    a.tokens AS tokens_a, b.tokens AS tokens_b,
    coalesce(a.state, 'absent') AS a, coalesce(b.state, 'absent') AS b
    FROM plan_a AS a FULL JOIN plan_b AS b ON {on}"""
_SOURCES = """SELECT coalesce(source, '') AS source, count(tokens) AS samples,
    CAST(coalesce(sum(tokens), 0) AS BIGINT) AS tokens FROM plan_{name} GROUP BY 1"""
_KIND = """CASE WHEN a = b AND tokens_a = tokens_b OR 'packed' NOT IN (a, b) THEN 'equal'
    WHEN a = b THEN 'tokens_differ' WHEN b = 'packed' THEN 'gained' ELSE 'lost' END"""
_GROUPS = f"SELECT {_KIND} AS kind, a, b, count(*) AS n FROM matched GROUP BY ALL ORDER BY ALL"
_COUNTS = (
    *("num_packs", "num_samples", "num_pieces", "num_tokens", "num_tokens_cut", "num_dropped"),
    *("num_tokens_lost", "lost_percent", "fill", "lower_bound", "gap", "gap_percent"),
)


def diff(a: Index, b: Index) -> Row:
    """Compare plan `b` with plan `a`.

    Samples are matched by their ids if both plans are of the same lengths, else by source and key.

    Args:
        a: a snapshot.
        b: another one, of the same index or of another.

    Returns:
        Plain values; ``{"a": …, "b": …}`` is a value of each plan. ``same`` (True if both are the
        same snapshot), ``a`` and ``b`` (``path``, ``snapshot_id``, ``created``), ``options`` and
        ``lengths`` that differ, ``counts``, ``dropped`` (samples by reason), ``sources``
        (``samples`` and ``tokens`` in packs), and ``samples``: ``matched_by``, ``in_both``,
        ``gained`` (packed by `b` alone), ``gained_from`` (their drop reasons in `a`, or
        ``absent``), ``lost``, ``lost_to`` and ``tokens_differ``; None if the lengths differ and a
        key is missing or names several samples.

    Raises:
        FormatError: a file is missing or damaged.
    """
    plans = {"a": a, "b": b}
    found: Row = {"same": a.id == b.id} | {
        name: {"path": i.path, "snapshot_id": i.id, "created": i.snapshot.created}
        for name, i in plans.items()
    }
    for what, describe in _MANIFEST.items():
        one, two, none = describe(a), describe(b), 0 if what == "dropped" else None
        names = dict.fromkeys([*one, *two])
        pairs = {name: {"a": one.get(name, none), "b": two.get(name, none)} for name in names}
        is_shown = what not in ("options", "lengths")
        found[what] = {n: v for n, v in pairs.items() if is_shown or v["a"] != v["b"]}
    tables = {f"{n}_{t}": (i, t) for n, i in plans.items() for t in ("samples", "dropped")}
    with tables_of(tables) as connection:
        for name in plans:
            connection.execute(_PLAN.format(name=name))
        found["sources"] = _sources(connection)
        found["samples"] = _samples(connection, "fingerprint" not in found["lengths"])
    return found


def _options(index: Index) -> Row:
    flat: Row = {}
    for name, value in index.snapshot.options.to_json().items():
        nested = value if isinstance(value, Mapping) else None
        flat |= {name: value} if nested is None else {f"{name}.{n}": v for n, v in nested.items()}
    return flat


def _lengths(index: Index) -> Row:
    planned, encoder = index.snapshot.lengths, index.snapshot.lengths.encoder
    stated = {"encoder": encoder.name, **(encoder.settings or {})} if encoder else {}
    return {"fingerprint": planned.fingerprint, "num_samples": planned.num_samples, **stated}


def _counts(index: Index) -> Row:
    counts = {name: getattr(index.snapshot.result, name) for name in _COUNTS}
    return counts | {"packs_per_step": packs_per_step(index.snapshot)}


_MANIFEST: dict[str, Callable[[Index], Mapping[str, Any]]] = {
    "options": _options,
    "lengths": _lengths,
    "counts": _counts,
    "dropped": lambda index: index.snapshot.result.dropped,
}


def _sources(connection: duckdb.DuckDBPyConnection) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for name in "ab":
        for row in rows_of(connection, _SOURCES.format(name=name)):
            empty = {"samples": {"a": 0, "b": 0}, "tokens": {"a": 0, "b": 0}}
            of_source = found.setdefault(row["source"], empty)
            for column in of_source:
                of_source[column][name] = row[column]
    return dict(sorted(found.items()))


def _samples(connection: duckdb.DuckDBPyConnection, same_lengths: bool) -> Row | None:
    columns = ["sample_id"] if same_lengths else ["source", "key"]
    if not same_lengths:
        checks = [connection.sql(_HAS_KEYS.format(name=name)).fetchall() for name in "ab"]
        if checks != [[(True,)]] * 2:
            return None
    on = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in columns)
    connection.execute(_MATCHED.format(on=on))
    groups = rows_of(connection, _GROUPS)
    kinds = ("gained", "lost", "tokens_differ")
    return {
        "matched_by": " and ".join(columns),
        "in_both": sum(row["n"] for row in groups if row["a"] == row["b"] == "packed"),
        **{kind: sum(row["n"] for row in groups if row["kind"] == kind) for kind in kinds},
        "gained_from": {row["a"]: row["n"] for row in groups if row["kind"] == "gained"},
        "lost_to": {row["b"]: row["n"] for row in groups if row["kind"] == "lost"},
    }
