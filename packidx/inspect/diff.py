"""`diff`: two plans side by side, and their samples matched by one full join."""

from __future__ import annotations

from collections.abc import Mapping

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
_MATCHED = """CREATE TABLE matched AS SELECT coalesce(a.source, b.source, '') AS source,
    a.tokens AS tokens_a, b.tokens AS tokens_b,
    coalesce(a.state, 'absent') AS a, coalesce(b.state, 'absent') AS b
    FROM plan_a AS a FULL JOIN plan_b AS b ON {on}"""
_SOURCES = """SELECT source, {'a': count(tokens_a), 'b': count(tokens_b)} AS samples,
    {'a': coalesce(sum(tokens_a), 0)::BIGINT, 'b': coalesce(sum(tokens_b), 0)::BIGINT} AS tokens
    FROM matched GROUP BY source ORDER BY source"""
_GROUPS = """SELECT a, b, count(*) AS n, count(*) FILTER (tokens_a <> tokens_b) AS differ
    FROM matched GROUP BY ALL ORDER BY ALL"""
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
    stated = _collect_facts(a), _collect_facts(b)
    for what in stated[0]:
        one, two = (each[what] for each in stated)
        none = 0 if what == "dropped" else None
        pairs = {n: {"a": one.get(n, none), "b": two.get(n, none)} for n in {**one, **two}}
        is_shown = what not in ("options", "lengths")
        found[what] = {n: v for n, v in pairs.items() if is_shown or v["a"] != v["b"]}
    tables = {f"{n}_{t}": (i, t) for n, i in plans.items() for t in ("samples", "dropped")}
    with tables_of(tables) as connection:
        for name in plans:
            connection.execute(_PLAN.format(name=name))
        samples = _match_samples(connection, "fingerprint" not in found["lengths"])
        found["sources"] = {row.pop("source"): row for row in rows_of(connection, _SOURCES)}
    return found | {"samples": samples}


def _collect_facts(index: Index) -> dict[str, Row]:
    result, planned = index.snapshot.result, index.snapshot.lengths
    options: Row = {}
    for name, value in index.snapshot.options.to_json().items():
        is_nested = isinstance(value, Mapping)
        options |= {f"{name}.{n}": v for n, v in value.items()} if is_nested else {name: value}
    encoder, counts = planned.encoder, {name: getattr(result, name) for name in _COUNTS}
    counted = {"encoder": encoder.name, **(encoder.settings or {})} if encoder else {}
    lengths = {"fingerprint": planned.fingerprint, "num_samples": planned.num_samples, **counted}
    counts["packs_per_step"] = packs_per_step(index.snapshot)
    return {"options": options, "lengths": lengths, "counts": counts, "dropped": {**result.dropped}}


def _match_samples(connection: duckdb.DuckDBPyConnection, same_lengths: bool) -> Row | None:
    """Match the samples of both plans; None if nothing tells them apart."""
    columns = ["sample_id"] if same_lengths else ["source", "key"]
    checks = [] if same_lengths else [_HAS_KEYS.format(name=name) for name in "ab"]
    is_matched = all(connection.sql(check).fetchall() == [(True,)] for check in checks)
    on = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in columns)
    connection.execute(_MATCHED.format(on=on if is_matched else "false"))
    if not is_matched:
        return None
    groups = {(row["a"], row["b"]): row for row in rows_of(connection, _GROUPS)}
    both = groups.pop(("packed", "packed"), {"n": 0, "differ": 0})
    gained = {a: row["n"] for (a, b), row in groups.items() if b == "packed"}
    lost = {b: row["n"] for (a, b), row in groups.items() if a == "packed"}
    return {
        "matched_by": " and ".join(columns),
        "in_both": both["n"],
        "gained": sum(gained.values()),
        "lost": sum(lost.values()),
        "tokens_differ": both["differ"],
        "gained_from": gained,
        "lost_to": lost,
    }
