"""`diff`: two plans side by side, their samples matched by one full join."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from packidx.format.index import IndexManifest
from packidx.format.parquet import quoted
from packidx.index.cost import pack_cost
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.index.tables import Views
from packidx.inspect.sql import connect
from packidx.inspect.stats.idle import RANKS, ScheduledPacks, first_epoch, ranks_stats
from packidx.inspect.trace import first_ids


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans."""

    path: str
    snapshot_id: str
    created: str


@dataclass(frozen=True, slots=True)
class Both:
    """A value of each plan; null where it has none."""

    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """What a source has in the packs of each plan, over all its epochs, pieces and copies."""

    samples: Both
    """Different ones."""
    tokens: Both
    share: Both
    """Of all packed tokens."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sample, and what is to be said of it in each plan."""

    source: str | None
    key: str | None
    sample_id: Both
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Examples:
    """The first samples of each kind, in order of the first plan's ids, then the second's.

    `gained` and `lost` have why the plan without the sample has not packed it (``absent``: it is
    not in its lengths), `moved` the first pack that it is in, `tokens_differ` its tokens.
    """

    gained: tuple[Example, ...]
    lost: tuple[Example, ...]
    moved: tuple[Example, ...]
    tokens_differ: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class SampleDiff:
    """What became of the samples."""

    matched_by: str
    """``sample_id`` (the lengths are the same), ``source and key``, or ``shard and row``: shards of
    the same content."""
    in_both: int
    """Samples that both plans pack."""
    gained: int
    """Samples that only B packs."""
    gained_from: Mapping[str, int]
    """Of these by what they were in A: a reason of its drops, or ``absent``."""
    lost: int
    """Samples that only A packs."""
    lost_to: Mapping[str, int]
    """Of these by what they are in B."""
    moved: int
    """Samples in both that share their packs with others of them than before."""
    companions_kept: float | None
    """Of the pairs of samples in both that share a pack in A, the share that do in B; null where
    there is none. A sample counts in its first pack."""
    tokens_differ: int
    """Samples in both that have another number of tokens in their packs, as the plan counts them:
    of the first copy in the first epoch, without what was cut off."""
    examples: Examples


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans, and all that differs."""

    same: bool
    """Both are the same snapshot: same lengths, options and packs. Nothing else is told then."""
    a: Side
    b: Side
    options: Mapping[str, Both]
    """Of those that differ."""
    lengths: Mapping[str, Both]
    """What differs in the lengths that were planned: fingerprint, methods, encoder, settings."""
    counts: Mapping[str, Both]
    """Of packs, samples, tokens; fill, bound and gap: equal ones, too."""
    dropped: Mapping[str, Both]
    """Samples by the reason for which they are in no pack."""
    sources: Mapping[str, SourceDiff]
    cost: Both
    """Of the first epoch's packs, in the unit of A's cost model, which both are measured by."""
    useful: Mapping[str, Both]
    """Share of the time in which no rank waits, by number of ranks and A's cost model."""
    samples: SampleDiff | None
    """Null where samples cannot be told from each other: lengths that differ, and neither unique
    keys nor shards."""


def diff(
    a: Index, b: Index, *, examples: int = 3, progress: Callable[[str], None] = lambda doing: None
) -> PlanDiff:
    """Return what plan `b` differs in from plan `a`.

    Samples are matched by their ids where both plans are of the same lengths; else by source and
    key, where these name one sample (of a preference pair: two) each; else by row in shards of the
    same content.

    Args:
        a, b: of one index or of two.
        examples: samples of each kind that are named.
        progress: told what is being done.

    Raises:
        FormatError: a file is missing or damaged.
    """
    side_a, side_b = (Side(index.path, index.id, index.snapshot.created) for index in (a, b))
    if a.id == b.id:
        nothing = Both(None, None)
        return PlanDiff(True, side_a, side_b, {}, {}, {}, {}, {}, nothing, {}, None)
    progress("comparing packs")
    cost, useful = costs_told(a, b)
    progress("reading samples")
    with opened(a, b) as connection:
        of_sources = source_diffs(connection)
        progress("matching samples")
        how = matched_by(connection, a, b)
        told = None if how is None else sample_diff(connection, how, examples)
    one, two = a.snapshot, b.snapshot
    return PlanDiff(
        same=False,
        a=side_a,
        b=side_b,
        options=options_told(one, two),
        lengths=lengths_told(one, two),
        counts=counts_told(one, two),
        dropped=dropped_told(one, two),
        sources=of_sources,
        cost=cost,
        useful=useful,
        samples=told,
    )


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
        connection = stack.enter_context(connect(Views(views)))
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
    firsts = [first_ids(index) for index in (a, b)]
    if firsts[0] is not None and firsts[1] is not None:
        _locate(connection, "a", a, firsts[0])
        _locate(connection, "b", b, firsts[1])
        _join(connection, ["shard", "row"])
        return "shard and row"
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


_GAINED, _LOST, _BOTH = "in_b AND NOT in_a", "in_a AND NOT in_b", "in_a AND in_b"


def sample_diff(
    connection: duckdb.DuckDBPyConnection, matched_by: str, num_examples: int
) -> SampleDiff:
    """Return what the tables of `match` come to."""
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
    """Return the share of the pairs in one first pack of A that share one in B."""
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


def source_diffs(connection: duckdb.DuckDBPyConnection) -> dict[str, SourceDiff]:
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


def options_told(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Options that differ; those within others by ``cost_model.vit_linear``."""
    return _differences(_flat(a.options.to_json()), _flat(b.options.to_json()))


def lengths_told(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Return what differs in the lengths that were planned."""
    differing = _differences(_lengths(a), _lengths(b))
    if a.lengths.encoder is None or b.lengths.encoder is None:  # then all of one's would be told
        differing = {k: v for k, v in differing.items() if not k.startswith("settings.")}
    return differing


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


def counts_told(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Numbers of both plans by their names in the manifest."""
    one, two = a.result, b.result
    numbers = {name: Both(getattr(one, name), getattr(two, name)) for name in _COUNTS}
    known = {"num_samples_in": Both(a.lengths.num_samples, b.lengths.num_samples)}
    return known | numbers | {"packs_per_step": Both(packs_per_step(a), packs_per_step(b))}


def dropped_told(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Samples by the reason for which they are in no pack."""
    one, two = a.result.dropped, b.result.dropped
    return {name: Both(one.get(name, 0), two.get(name, 0)) for name in _union(one, two)}


def costs_told(a: Index, b: Index) -> tuple[Both, dict[str, Both]]:
    """Cost of the first epoch, and useful share of the time by number of ranks, by A's weights."""
    weights = a.snapshot.options.cost_model.to_json()
    of_a, of_b = (_scheduled(index, weights) for index in (a, b))
    ranks = [
        ranks_stats(packs, packs_per_step(index.snapshot) or 1)
        for index, packs in ((a, of_a), (b, of_b))
    ]
    useful = {
        str(number): Both(
            *(None if (o := each["planned"]) is None else o["useful"] for each in two)
        )
        for number, *two in zip(RANKS, *ranks, strict=True)
    }
    totals = (float(packs.llm.sum() + packs.vit.sum()) for packs in (of_a, of_b))
    return Both(*totals), useful


def _scheduled(index: Index, weights: Mapping[str, Any]) -> ScheduledPacks:
    columns, _, _ = first_epoch(index)
    return ScheduledPacks(*pack_cost(weights, columns), columns["length"])


def _flat(stated: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in stated.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return flat


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Both]:
    both = {name: Both(one.get(name), two.get(name)) for name in _union(one, two)}
    return {name: values for name, values in both.items() if values.a != values.b}


def _union(one: Iterable[str], two: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*one, *two]))
