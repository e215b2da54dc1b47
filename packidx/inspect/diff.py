"""`diff`: two plans side by side, their samples matched by one full join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import duckdb

from packidx.format.index import IndexManifest
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.sql import Row, rows_of, tables_of
from packidx.inspect.waiting import RANKS, first_epoch, ranks_stats


def _both(a: Any, b: Any) -> Row:
    """Return a value of each plan; None where it has none."""
    return {"a": a, "b": b}


def diff(
    a: Index, b: Index, *, examples: int = 3, progress: Callable[[str], None] = lambda doing: None
) -> Row:
    """Return what plan `b` differs in from plan `a`.

    Samples are matched by their ids where both plans are of the same lengths; else by source and
    key, where these name one sample (of a preference pair: two) each.

    Args:
        a, b: of one index or of two.
        examples: samples of each kind that are named.
        progress: told what is being done.

    Returns:
        plain values, ``{"a": …, "b": …}`` for one of each plan: ``same`` (both are the same
        snapshot, and nothing else is told), ``a`` and ``b`` (``path``, ``snapshot_id``,
        ``created``), ``options`` and ``lengths`` that differ, ``counts`` (equal ones, too),
        ``dropped`` (samples by reason), ``sources`` (``samples``, ``tokens`` and ``share`` of all
        packed tokens of each, over all epochs, pieces and copies), ``cost`` (of the first epoch's
        packs, by A's cost model), ``useful`` (share of the time in which no rank waits, by number
        of ranks and A's cost model), and ``samples`` (`sample_diff`; None where samples cannot be
        told from each other).

    Raises:
        FormatError: a file is missing or damaged.
    """
    sides = dict(zip(NAMES, (a, b), strict=True))
    told: Row = {"same": a.id == b.id, **dict.fromkeys(("options", "lengths", "counts"), {})}
    told |= {"dropped": {}, "sources": {}, "cost": _both(None, None), "useful": {}, "samples": None}
    for name, index in sides.items():
        created = index.snapshot.created
        told[name] = {"path": index.path, "snapshot_id": index.id, "created": created}
    if told["same"]:
        return told
    progress("comparing packs")
    told["cost"], told["useful"] = _costs(a, b)
    told |= _manifests(a.snapshot, b.snapshot)
    progress("reading samples")
    tables = {
        f"{name}_{table}": (index, table)
        for name, index in sides.items()
        for table in ("packs", "samples", "dropped")
    }
    with tables_of(tables) as connection:
        for name in NAMES:
            _load(connection, name, int(sides[name].snapshot.options.shift))
        told["sources"] = _sources(connection)
        progress("matching samples")
        how = matched_by(connection, a, b)
        if how is not None:
            told["samples"] = sample_diff(connection, how, examples)
    return told


NAMES = ("a", "b")


def _load(connection: duckdb.DuckDBPyConnection, name: str, shift: int) -> None:
    """Make the tables of one plan, ``a`` and ``places_a`` or ``b`` and ``places_b``.

    A sample's home is its first pack in the order of training: of the first epoch's first copy from
    its first token on.
    """
    connection.execute(
        f"""CREATE TABLE places_{name} AS SELECT DISTINCT sample_id, pack_id FROM {name}_samples;
        CREATE TABLE {name} AS SELECT sample_id, any_value(source) AS source,
            any_value(key) AS key, true AS packed,
            sum(s.length) FILTER (copy = 0 AND epoch = 0) + {shift} AS tokens,
            arg_min(s.pack_id, (epoch, copy, token_start, s.pack_id)) AS home,
            NULL::VARCHAR AS reason
        FROM {name}_samples AS s JOIN (SELECT pack_id, epoch FROM {name}_packs) AS p
        ON s.pack_id = p.pack_id GROUP BY sample_id
        UNION ALL BY NAME
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
    return None


def _has_unique_keys(connection: duckdb.DuckDBPyConnection, name: str, index: Index) -> bool:
    """Return whether source and key name one sample each, or the two sides of a pair; ``side`` is
    then 1 or 2, the chosen one's being the first, as it has the lower id."""
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


_GAINED, _LOST, _BOTH = "in_b AND NOT in_a", "in_a AND NOT in_b", "in_a AND in_b"


def sample_diff(connection: duckdb.DuckDBPyConnection, matched_by: str, num_examples: int) -> Row:
    """Return what became of the samples, by the tables of `matched_by`.

    Returns:
        ``matched_by`` (``'sample_id'``: the lengths are the same, or ``'source and key'``),
        ``in_both`` (samples that both plans pack),
        ``gained`` (only B packs them) and ``gained_from`` (of these by what they were in A: a
        reason of its drops, or ``absent``), ``lost`` and ``lost_to``, ``moved`` (samples in both
        that share their packs with others of them than before), ``tokens_differ`` (samples in both
        with another number of tokens in their packs, of the first copy in the first epoch, without
        what was cut off),
        and ``examples`` of each kind: ``source``, ``key``, ``sample_id`` of both, and ``a`` and
        ``b``: why the plan has not packed it, its first pack, or its tokens.
    """
    _find_moved(connection)
    gained = _by_reason(connection, _GAINED, "reason_a")
    lost = _by_reason(connection, _LOST, "reason_b")
    moved, differ = "sample_id_a IN (FROM moved)", f"{_BOTH} AND tokens_a != tokens_b"
    kinds = {
        "gained": (_GAINED, "coalesce(reason_a, 'absent')", "'packed'"),
        "lost": (_LOST, "'packed'", "coalesce(reason_b, 'absent')"),
        "moved": (moved, "home_a", "home_b"),
        "tokens_differ": (differ, "tokens_a", "tokens_b"),
    }
    return {
        "matched_by": matched_by,
        "in_both": _count(connection, _BOTH),
        "gained": sum(gained.values()),
        "gained_from": gained,
        "lost": sum(lost.values()),
        "lost_to": lost,
        "moved": _count(connection, moved),
        "tokens_differ": _count(connection, differ),
        "examples": {
            kind: _examples(connection, *each, num_examples) for kind, each in kinds.items()
        },
    }


def _find_moved(connection: duckdb.DuckDBPyConnection) -> None:
    """Make ``moved``: samples in both whose packs hold other samples in both than before.

    A pack is known by two sums of 64-bit hashes of its samples, and a sample by those of its packs:
    other samples have the same sums as good as never.
    """
    for name in "ab":
        connection.execute(
            f"""CREATE TEMP TABLE company_{name} AS
            WITH held AS (
                SELECT m.sample_id_a AS id, p.pack_id AS pack, hash(m.sample_id_a) AS h
                FROM places_{name} AS p JOIN matched AS m ON p.sample_id = m.sample_id_{name}
                WHERE {_BOTH}),
            packs AS (
                SELECT pack, hash(sum(h::HUGEINT), bit_xor(hash(h)), count(*)) AS h
                FROM held GROUP BY pack)
            SELECT id, sum(h::HUGEINT) AS h FROM (
                SELECT DISTINCT held.id, packs.h FROM held JOIN packs USING (pack))
            GROUP BY id"""
        )
    connection.execute(
        """CREATE TEMP TABLE moved AS SELECT a.id FROM company_a AS a JOIN company_b AS b
        ON a.id = b.id WHERE a.h != b.h"""
    )


def _count(connection: duckdb.DuckDBPyConnection, where: str) -> int:
    [(number,)] = connection.execute(f"SELECT count(*) FROM matched WHERE {where}").fetchall()
    return int(number)


def _by_reason(connection: duckdb.DuckDBPyConnection, where: str, reason: str) -> dict[str, int]:
    rows = connection.execute(
        f"SELECT coalesce({reason}, 'absent') AS why, count(*) AS n FROM matched WHERE {where} "
        "GROUP BY why ORDER BY n DESC, why"
    )
    return dict(rows.fetchall())


def _examples(
    connection: duckdb.DuckDBPyConnection, where: str, of_a: str, of_b: str, number: int
) -> list[Row]:
    """Return the first samples of a kind, in order of the first plan's ids, then the second's."""
    return rows_of(
        connection,
        f"""SELECT source, key, {{'a': sample_id_a, 'b': sample_id_b}} AS sample_id,
        {of_a} AS a, {of_b} AS b FROM matched
        WHERE {where} ORDER BY sample_id_a, sample_id_b LIMIT {number}""",
    )


def _sources(connection: duckdb.DuckDBPyConnection) -> dict[str, Row]:
    """Return what each source has in the packs; samples without one by an empty name."""
    of_plans = [
        f"""SELECT '{name}' AS plan, coalesce(source, '') AS source,
        count(DISTINCT sample_id) AS samples, sum(length) AS tokens,
        tokens / sum(sum(length)) OVER () AS share FROM {name}_samples GROUP BY ALL"""
        for name in NAMES
    ]
    told: dict[str, Row] = {}
    for row in rows_of(connection, f"{' UNION ALL '.join(of_plans)} ORDER BY source"):
        none = {"samples": _both(0, 0), "tokens": _both(0, 0), "share": _both(0.0, 0.0)}
        of_source = told.setdefault(row["source"], none)
        for name, both in of_source.items():
            both[row["plan"]] = row[name] if name == "share" else int(row[name])
    return told


_COUNTS = (
    "num_packs",
    "num_samples",
    "num_pieces",
    "num_tokens",
    "num_tokens_cut",
    "num_dropped",
    "num_tokens_lost",
    "lost_percent",
    "fill",
    "lower_bound",
    "gap",
    "gap_percent",
)


def _manifests(a: IndexManifest, b: IndexManifest) -> Row:
    """Return the options and lengths that differ, and the counts of both."""
    lengths = _differences(_lengths(a), _lengths(b))
    if a.lengths.encoder is None or b.lengths.encoder is None:  # then all of one's would be told
        lengths = {k: v for k, v in lengths.items() if not k.startswith("settings.")}
    dropped = a.result.dropped, b.result.dropped
    return {
        # Options within others by ``cost_model.vit_linear``.
        "options": _differences(_flat(a.options.to_json()), _flat(b.options.to_json())),
        "lengths": lengths,
        "counts": {
            "num_samples_in": _both(a.lengths.num_samples, b.lengths.num_samples),
            **{name: _both(getattr(a.result, name), getattr(b.result, name)) for name in _COUNTS},
            "packs_per_step": _both(packs_per_step(a), packs_per_step(b)),
        },
        "dropped": {why: _both(*(d.get(why, 0) for d in dropped)) for why in _union(*dropped)},
    }


def _lengths(snapshot: IndexManifest) -> dict[str, Any]:
    planned, encoder = snapshot.lengths, snapshot.lengths.encoder
    told: dict[str, Any] = {
        "fingerprint": planned.fingerprint,
        "num_samples": planned.num_samples,
        "transform": None if planned.transform is None else planned.transform.fingerprint,
        "encoder": None if encoder is None else encoder.name,
        "labels": None if encoder is None else encoder.labels,
        "encoder.fingerprint": None if encoder is None else encoder.fingerprint,
    }
    settings = {} if encoder is None else encoder.settings or {}
    told |= {f"methods.{name}": number for name, number in planned.methods.items()}
    return told | {f"settings.{name}": value for name, value in settings.items()}


def _costs(a: Index, b: Index) -> tuple[Row, dict[str, Row]]:
    """Return the cost of the first epoch, and the useful share of the time by number of ranks."""
    weights = a.snapshot.options.cost_model
    costs, useful = [], []
    for index in (a, b):
        packs = first_epoch(index, weights)
        costs.append(float(packs.llm.sum() + packs.vit.sum()))
        of_ranks = ranks_stats(packs, packs_per_step(index.snapshot) or 1)
        useful.append([each["planned"] and each["planned"]["useful"] for each in of_ranks])
    pairs = zip(RANKS, *useful, strict=True)
    return _both(*costs), {str(number): _both(*shares) for number, *shares in pairs}


def _flat(stated: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in stated.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return flat


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Row]:
    both = {name: _both(one.get(name), two.get(name)) for name in _union(one, two)}
    return {name: values for name, values in both.items() if values["a"] != values["b"]}


def _union(one: Iterable[str], two: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*one, *two]))
