"""What became of the samples: gained, lost, moved, longer or shorter."""

from __future__ import annotations

from typing import Any

import duckdb

from packidx.inspect.diff.results import Both, Example, Examples, SampleDiff, SourceDiff

_GAINED, _LOST, _BOTH = "in_b AND NOT in_a", "in_a AND NOT in_b", "in_a AND in_b"


def sample_diff(
    connection: duckdb.DuckDBPyConnection, matched_by: str, num_examples: int
) -> SampleDiff:
    """What the tables of `match` come to."""
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
    return SampleDiff(
        matched_by=matched_by,
        in_both=_count(connection, _BOTH),
        gained=sum(gained.values()),
        gained_from=gained,
        lost=sum(lost.values()),
        lost_to=lost,
        moved=_count(connection, moved),
        companions_kept=_companions_kept(connection),
        tokens_differ=_count(connection, differ),
        examples=Examples(
            **{kind: _examples(connection, *each, num_examples) for kind, each in kinds.items()}
        ),
    )


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


def _companions_kept(connection: duckdb.DuckDBPyConnection) -> float | None:
    """Of the pairs that share a first pack in A, the share that do in B."""
    [(kept, of)] = connection.execute(
        f"""WITH together AS (
            SELECT home_a, home_b, count(*) AS n FROM matched WHERE {_BOTH} GROUP BY ALL),
        before AS (SELECT home_a, sum(n) AS n FROM together GROUP BY home_a)
        SELECT (SELECT sum(n * (n - 1)) FROM together), (SELECT sum(n * (n - 1)) FROM before)"""
    ).fetchall()
    return int(kept) / int(of) if of else None


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
) -> tuple[Example, ...]:
    rows: list[tuple[Any, ...]] = connection.execute(
        f"""SELECT source, key, sample_id_a, sample_id_b, {of_a}, {of_b} FROM matched
        WHERE {where} ORDER BY sample_id_a, sample_id_b LIMIT {number}"""
    ).fetchall()
    return tuple(
        Example(source, key, Both(id_a, id_b), _plain(one), _plain(two))
        for source, key, id_a, id_b, one, two in rows
    )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else int(value)


def sources(connection: duckdb.DuckDBPyConnection) -> dict[str, SourceDiff]:
    """Samples and tokens of each source in the packs; samples without one by an empty name."""
    held: dict[str, dict[str, tuple[int, int]]] = {}
    totals = {}
    for name in "ab":
        rows = connection.execute(
            f"""SELECT * FROM
            (SELECT coalesce(source, '') AS source, count(*) FROM {name} WHERE packed GROUP BY ALL)
            JOIN (SELECT coalesce(source, '') AS source, sum(length) FROM {name}_samples
                GROUP BY ALL) USING (source)"""
        ).fetchall()
        totals[name] = sum(int(tokens) for *_, tokens in rows)
        for source, samples, tokens in rows:
            held.setdefault(source, {})[name] = int(samples), int(tokens)
    told = {}
    for source, each in sorted(held.items()):
        (samples_a, tokens_a), (samples_b, tokens_b) = (each.get(name, (0, 0)) for name in "ab")
        shares = tokens_a / max(1, totals.get("a", 0)), tokens_b / max(1, totals.get("b", 0))
        told[source] = SourceDiff(
            Both(samples_a, samples_b), Both(tokens_a, tokens_b), Both(*shares)
        )
    return told
