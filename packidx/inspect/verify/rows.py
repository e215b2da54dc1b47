"""Checks of the rows, window by window: SQL that gives the rows that offend, with a sentence.

Each window's tables are read once, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from packidx.format import index as plan
from packidx.format.index import folder_name, snapshot_id
from packidx.format.terms import LOST
from packidx.index.reader import Index
from packidx.index.window_files import WindowDigest

if TYPE_CHECKING:
    from packidx.lengths.table import Lengths


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    """Nothing wrong was seen; true also of what was not looked at."""
    detail: str
    """A line: how much was looked at, or the first faults, or why nothing was looked at."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """How much was looked at, counted on the way: ``{"files": 3, "bytes_hashed": 283462}``."""
    checked: bool = True
    """Whether it was looked at."""


def not_checked(name: str, why: str) -> Check:
    return Check(name, True, f"not checked: {why}", checked=False)


def amount(number: int, plural: str) -> str:
    """A number of things, ``1 pack`` or ``2 packs``."""
    return f"{number:,} {plural.removesuffix('s') if number == 1 else plural}"


def start_of(digest: str) -> str:
    """The first digits of a digest; the other value beside it differs in them."""
    return digest[:12]


def few(complaints: Iterable[str]) -> str:
    """The first complaints, and how many more there are."""
    listed = list(complaints)
    more = f"; and {len(listed) - 5:,} more" if len(listed) > 5 else ""
    return "; ".join(listed[:5]) + more


TABLES = ("packs", "samples", "dropped")


class Rule(NamedTuple):
    """Rows that offend."""

    sentence: str
    """What is said of the first one: a format of its columns, the last of which is their number."""
    counted: str
    """What the rows are, in plural."""
    sql: str
    """In which `placed` are the samples with the row of their pack in its window, by `first_row`;
    the last column is `n`, the number of rows that offend."""


_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_PLACED = (
    "CREATE OR REPLACE TEMP VIEW placed AS SELECT samples.*, packs.place AS in_pack, "
    "packs.first_row - $first_row AS first "
    "FROM samples ASOF JOIN packs ON samples.place >= packs.first_row - $first_row"
)
# Name, table, the pack's row, and what follows from the rows before.
_FOLLOWING = (
    ("pack_id", "packs", "place", "$first_pack + place"),
    ("window", "packs", "place", "$number"),
    (
        "first_row",
        "packs",
        "place",
        f"$first_row + coalesce(sum(num_samples) OVER (ORDER BY place {_BEFORE}), 0)",
    ),
    ("pack_id", "placed", "in_pack", "$first_pack + in_pack"),
    ("position", "placed", "in_pack", "place - first"),
    (
        "start",
        "placed",
        "in_pack",
        f"coalesce(sum(padded_length) OVER (PARTITION BY in_pack ORDER BY place {_BEFORE}), 0)",
    ),
)
_ORDER = [
    Rule(
        f"{name}{' of a sample' if (name, table) == ('pack_id', 'placed') else ''} in pack {{}} is "
        "{}, not {} as by the rows before ({})",
        "rows",
        f'SELECT $first_pack + {pack}, "{name}", expected, count(*) OVER () AS n '
        f"FROM (SELECT *, {expected} AS expected FROM {table}) "
        f'WHERE "{name}" IS DISTINCT FROM expected ORDER BY place LIMIT 1',
    )
    for name, table, pack, expected in _FOLLOWING
]
_TABLE_ROWS = Rule(
    "packs hold {:,} samples, the table has {:,}",
    "rows",
    "SELECT held, there, 1 AS n FROM (SELECT coalesce(sum(num_samples), 0) AS held FROM packs), "
    "(SELECT count(*) AS there FROM samples) WHERE held <> there",
)
_SUMS = {
    "length": "sum(length)",
    "label_tokens": "sum(label_tokens)",
    "padded_length": "(sum(padded_length) + $unit - 1) // $unit * $unit",
    "attention_cost": "sum(CAST(length AS BIGINT) * length)",
}
_ALWAYS = ("padded_length", "attention_cost")  # others may be unknown
_MEDIA = {"num_images": "image", "num_videos": "video"}
_HELD = "SELECT in_pack, {total} AS total FROM placed GROUP BY in_pack"
_HELD_MEDIA = (
    "SELECT in_pack, count(*) FILTER (medium.kind = '{kind}' AND coalesce(medium.at, 0) >= 0 "
    "AND coalesce(medium.at, 0) < length) AS total "
    "FROM (SELECT in_pack, length, unnest(media) AS medium FROM placed) GROUP BY in_pack"
)
_ONCE = [
    Rule(
        "sample {} is dropped more than once ({})",
        "cases",
        "SELECT sample_id, sum(count(*) - 1) OVER () AS n FROM dropped GROUP BY sample_id "
        "HAVING count(*) > 1 ORDER BY sample_id LIMIT 1",
    ),
    Rule(
        "sample {} has no id, copy or piece in its pack, or no reason to be in none ({})",
        "samples",
        "SELECT min(sample_id), count(*) AS n FROM (SELECT sample_id, copy + piece AS told "
        "FROM samples UNION ALL SELECT sample_id, len(reason) FROM dropped) "
        "WHERE sample_id IS NULL OR told IS NULL HAVING n > 0",
    ),
    Rule(
        "sample {} is packed more than once ({})",
        "cases",
        "SELECT sample_id, sum(count(*) - 1) OVER () AS n FROM placed "
        "GROUP BY sample_id, copy, piece HAVING count(*) > 1 ORDER BY sample_id LIMIT 1",
    ),
    Rule(
        "sample {} is both packed and dropped ({})",
        "samples",
        "SELECT sample_id, count(*) OVER () AS n FROM (SELECT DISTINCT sample_id FROM dropped "
        "WHERE sample_id IN (SELECT sample_id FROM samples)) ORDER BY sample_id LIMIT 1",
    ),
    Rule(
        "sample {} has media and is in pieces ({})",
        "samples",
        "SELECT sample_id, count(*) OVER () AS n FROM samples "
        "WHERE len(media) > 0 AND (piece > 0 OR token_start > 0) ORDER BY place LIMIT 1",
    ),
    Rule(
        "{:,} packed + {:,} dropped, the manifest says $num_rows samples of window $number",
        "samples",
        "SELECT packed, gone, 1 AS n FROM (SELECT count(*) AS gone FROM dropped), "
        "(SELECT count(DISTINCT sample_id) AS packed FROM samples) "
        "WHERE packed + gone <> $num_rows",
    ),
]
_TOGETHER = ("pack_id", "copy", "shard", "row")
_OTHER = [f"lead({name}) OVER (ORDER BY place) AS other_{name}" for name in _TOGETHER]
_SIDES = (
    "(SELECT *, lead(pair) OVER (ORDER BY place) AS following, "
    f"lag(pair) OVER (ORDER BY place) AS before, {', '.join(_OTHER)} FROM samples)"
)
_DIFFER = " ".join(f"WHEN {name} IS DISTINCT FROM other_{name} THEN '{name}'" for name in _TOGETHER)
_PAIRS = [
    Rule(
        "sample {} is the {} side of a pair without the other one beside it ({})",
        "sides",
        f"SELECT sample_id, pair, count(*) OVER () AS n FROM {_SIDES} "
        "WHERE (pair = 'chosen' AND following IS DISTINCT FROM 'rejected') "
        "OR (pair = 'rejected' AND before IS DISTINCT FROM 'chosen') ORDER BY place LIMIT 1",
    ),
    Rule(
        "sample {} has another value of {} than the other side of its pair ({})",
        "pairs",
        f"SELECT sample_id, CASE {_DIFFER} END AS name, count(*) OVER () AS n FROM {_SIDES} "
        "WHERE pair = 'chosen' AND following = 'rejected' AND name IS NOT NULL "
        "ORDER BY place LIMIT 1",
    ),
    Rule(
        "sample {}, a side of a pair, is cut ({})",
        "sides",
        "SELECT sample_id, count(*) OVER () AS n FROM samples "
        "WHERE pair IS NOT NULL AND (piece > 0 OR token_start > 0) ORDER BY place LIMIT 1",
    ),
]


def _sum_rules(connection: duckdb.DuckDBPyConnection) -> dict[str, Rule]:
    """By counter of packs: it is, where it is known, what it is over the samples."""
    held = {name: _HELD.format(total=total) for name, total in _SUMS.items()}
    are_told = "SELECT count(*) = count(media) FROM samples"
    if connection.execute(are_told).fetchall() == [(True,)]:
        held |= {name: _HELD_MEDIA.format(kind=kind) for name, kind in _MEDIA.items()}
    rules = {}
    for name, sql in held.items():
        known = f"coalesce({name}, 0)" if name in _ALWAYS else name
        rules[name] = Rule(
            f"pack {{}}: {name} is {{:,}}, over its samples {{:,}} ({{}})",
            "packs",
            f"SELECT pack_id, {known}, coalesce(total, 0), count(*) OVER () AS n "
            f"FROM packs LEFT JOIN ({sql}) ON in_pack = place "
            f"WHERE {known} <> coalesce(total, 0) ORDER BY place LIMIT 1",
        )
    return rules


def _limit_rules(options: plan.Options) -> list[Rule]:
    """No pack holds more than planned; copies of a sample never share one."""
    caps = {
        "padded_length": options.planned_capacity,
        "num_images": options.max_images,
        "vision_patches": options.max_vision_patches,
        "num_samples": options.max_samples,
    }
    rules = [
        Rule(
            f"pack {{}} has {name} {{:,}}, at most are {cap:,} ({{}})",
            "packs",
            f"SELECT pack_id, {name}, count(*) OVER () AS n FROM packs WHERE {name} > {cap} "
            "ORDER BY place LIMIT 1",
        )
        for name, cap in caps.items()
        if cap is not None
    ]
    copies = Rule(
        "pack {} holds {} copies of sample {} ({})",
        "cases",
        "SELECT pack_id, count(DISTINCT copy), sample_id, count(*) OVER () AS n FROM samples "
        "GROUP BY pack_id, sample_id HAVING count(DISTINCT copy) > 1 ORDER BY ALL LIMIT 1",
    )
    return [*rules, copies]


def connected() -> duckdb.DuckDBPyConnection:
    """Return an engine that sees nothing but the tables that it is given."""
    return duckdb.connect(config={"python_enable_replacements": False})


_LOCATED = ("source", "key", "shard", "row", "offset", "nbytes")
_COUNTED_MEDIA = ("image_tokens", "video_tokens", "audio_tokens", "vision_patches")
_OF_DROPPED = ("source", "key")
_UNKNOWN = Rule(
    "sample {} of window $number is not one of its rows in the lengths table ({})",
    "samples",
    "SELECT sample_id, count(*) OVER () AS n FROM "
    "(SELECT sample_id FROM samples UNION SELECT sample_id FROM dropped) "
    "WHERE sample_id NOT IN (SELECT sample_id FROM counted) ORDER BY sample_id LIMIT 1",
)


def unlike(index: Index, lengths: Lengths) -> list[str]:
    """Return what a plan says otherwise than the lengths table that it was made of.

    Where samples lie is compared, and what packs hold of media, where none of them is cut.
    """
    wrong: list[str] = []
    columns = [name for name in (*_LOCATED, *_COUNTED_MEDIA) if name in lengths.columns]
    shift = int(index.snapshot.options.shift)
    rules = [_UNKNOWN, *(_located_rule(name, shift) for name in columns)]
    with connected() as connection:
        for number, first_row, _, _, window in index.snapshot.placed:
            stop = first_row + window.num_rows
            rows = lengths.read(first_row, stop, [*columns, "length"])  # which all tables have
            counted = {name: rows.arrow(name) for name in [*columns, "length"]}
            connection.register("counted", pa.table({"sample_id": rows.sample_id, **counted}))
            for name in TABLES:
                connection.register(name, index.window(name, number))
            wrong += _offending(connection, rules, {"number": number})
    return wrong


def _located_rule(name: str, shift: int) -> Rule:
    """Return the rule that a column of samples is the lengths table's, or a counter of packs of
    whole samples their sum there; `shift` is what a whole sample has less than its length."""
    if name in _COUNTED_MEDIA:
        return Rule(
            f"pack {{}}: {name} is {{:,}}, in the lengths table it is {{:,}} ({{}})",
            "packs",
            f"SELECT pack_id, packs.{name}, total, count(*) OVER () AS n FROM packs JOIN "
            f"(SELECT pack_id, sum(counted.{name}) AS total FROM samples JOIN counted "
            f"USING (sample_id) GROUP BY pack_id HAVING count(counted.{name}) = count(*) "
            f"AND bool_and(samples.length = counted.length - {shift})) USING (pack_id) "
            f"WHERE packs.{name} <> total ORDER BY pack_id LIMIT 1",
        )
    planned = f'SELECT sample_id, "{name}" AS planned FROM samples'
    if name in _OF_DROPPED:
        planned += f" UNION ALL SELECT sample_id, {name} FROM dropped"
    return Rule(
        f"sample {{}} has {name} {{}}, in the lengths table {{}} ({{}})",
        "rows",
        f'SELECT sample_id, planned, counted."{name}", count(*) OVER () AS n FROM ({planned}) '
        f'JOIN counted USING (sample_id) WHERE planned IS DISTINCT FROM counted."{name}" '
        "ORDER BY sample_id LIMIT 1",
    )


class Found:
    """All that was seen of a snapshot: complaints of each check, and sums over the windows."""

    def __init__(self, index: Index, connection: duckdb.DuckDBPyConnection) -> None:
        self.index, self._connection = index, connection
        self.options, self.result = index.snapshot.options, index.snapshot.result
        names = ("id", "order", "sums", "capacity", "every sample once", "result", "pairs")
        self.wrong: dict[str, list[str]] = {name: [] for name in names}
        self.totals: Counter[str] = Counter()
        self.fullest = 0
        self.reasons: Counter[str] = Counter()
        self.digests: list[str] = []
        self._limits = _limit_rules(self.options)
        self._last: int | None = None

    def look(self, placed: plan.PlacedWindow) -> None:
        """Look at the next window."""
        number = placed.number
        tables = {name: self.index.window(name, number) for name in TABLES}
        self._hash(number, placed.window, tables)
        connection = self._connection
        for name, rows in tables.items():
            place = pa.array(np.arange(rows.num_rows))
            connection.register(name, rows.append_column("place", place))
        values = {
            "first_row": placed.first_piece,
            "first_pack": placed.first_pack,
            "number": number,
            "num_rows": placed.window.num_rows,
            "unit": self.options.pad_pack_to or 1,
        }
        connection.execute(_bound(_PLACED, values))
        sums = _sum_rules(connection)
        for check, rules in {
            "order": [_TABLE_ROWS, *_ORDER],
            "sums": list(sums.values()),
            "capacity": self._limits,
            "every sample once": [_TABLE_ROWS, *_ONCE],
            "pairs": _PAIRS,
        }.items():
            self.wrong[check] += _offending(connection, rules, values)
        self._count(connection, placed.first_pack, sums)
        for name in tables:
            connection.unregister(name)

    def _hash(self, number: int, stated: plan.Window, tables: dict[str, pa.Table]) -> None:
        digest = WindowDigest()
        for name, rows in tables.items():
            digest.update(name, rows)
        self.digests.append(digest.hexdigest())
        if (name := folder_name([file.sha256 for file in stated.files])) != stated.folder:
            said = f"its files give {name}"
            self.wrong["id"].append(f"window {number} is in folder {stated.folder}, {said}")
        if self.digests[-1] != stated.digest:
            said = f"{start_of(self.digests[-1])}…, the manifest says {start_of(stated.digest)}…"
            self.wrong["id"].append(f"window {number} has digest {said}")

    def _count(
        self, connection: duckdb.DuckDBPyConnection, first_pack: int, summed: Iterable[str]
    ) -> None:
        """Add up what the window adds to the manifest's numbers."""
        lost = ", ".join(f"'{reason}'" for reason in LOST)
        known = " + ".join(f"count({name})" for name in summed)
        counted = connection.execute(
            f"""SELECT * FROM
            (SELECT count(*) AS num_packs, sum(length) AS num_tokens, {known} AS sums,
                max(padded_length) AS fullest FROM packs),
            (SELECT count(*) AS num_pieces, count(DISTINCT sample_id) AS num_samples,
                count(*) FILTER (pair = 'chosen') AS num_pairs FROM samples),
            (SELECT count(*) AS num_dropped, sum(greatest(length, 0)) AS num_tokens_dropped,
                sum(greatest(coalesce(length, 0), 0) - {int(self.options.shift)})
                FILTER (reason IN ({lost})) AS lost FROM dropped),
            (SELECT min(sample_id) AS least, max(sample_id) AS most FROM
                (SELECT sample_id FROM samples UNION ALL SELECT sample_id FROM dropped))"""
        )
        names = [column[0] for column in counted.description]
        [row] = counted.fetchall()
        told = dict(zip(names, row, strict=True))
        least, most = told.pop("least"), told.pop("most")
        if least is not None and self._last is not None and least <= self._last:
            said = f"the window from pack {first_pack} on has samples of the one before"
            self.wrong["every sample once"].append(said)
        self._last = self._last if most is None else most
        self.fullest = max(self.fullest, told.pop("fullest") or 0)
        self.totals.update({name: int(value or 0) for name, value in told.items()})
        reasons = connection.execute("SELECT reason, count(*) FROM dropped GROUP BY reason")
        self.reasons.update(dict(reasons.fetchall()))

    def checks(self) -> Iterator[Check]:
        """The verdicts; that of pairs where there is one."""
        self._identify()
        compared = self._compare_result()
        totals = self.totals
        packs, pieces, dropped = (
            totals[name] for name in ("num_packs", "num_pieces", "num_dropped")
        )
        rows, both = packs + pieces + dropped, {"packs": packs, "samples": pieces}
        numbers: dict[str, dict[str, int]] = {
            "id": {"rows_hashed": rows, "windows": len(self.digests)},
            "order": both,
            "sums": {**both, "sums": totals["sums"]},
            "capacity": {
                "packs": packs,
                "compared": (len(self._limits) - 1) * packs,
                "fullest": self.fullest,
            },
            "every sample once": {"packed": totals["num_samples"], "dropped": dropped},
            "result": {"rows": rows, "compared": compared},
            "pairs": {"pairs": totals["num_pairs"]},
        }
        for name, own in numbers.items():
            wrong = self.wrong[name]
            if name != "pairs" or wrong or totals["num_pairs"]:
                yield Check(name, not wrong, few(wrong) or self._right(name, own), own)

    def _right(self, name: str, numbers: Mapping[str, int]) -> str:
        """Return what was looked at, where nothing is wrong."""
        if name == "capacity":
            caps = ("max_images", "max_vision_patches", "max_samples")
            asked = {cap[4:]: value for cap in caps if (value := getattr(self.options, cap))}
            more = "".join(f", {value} {cap}" for cap, value in asked.items())
            most = self.options.planned_capacity
            said = f"the fullest has {self.fullest:,} tokens of at most {most:,}{more}"
            return f"{amount(numbers['packs'], 'packs')}, {said}"
        if name == "every sample once":
            packed, dropped = numbers["packed"], numbers["dropped"]
            total = amount(packed + dropped, "samples")
            return f"{packed:,} packed + {dropped:,} dropped = {total}, each once"
        words = {"rows_hashed": "rows hashed", "compared": "numbers compared"}
        told = (amount(number, words.get(key, key)) for key, number in numbers.items())
        ident = f", {start_of(self.index.id)}… is the id of this content" if name == "id" else ""
        return ", ".join(told) + ident

    def _identify(self) -> None:
        """Compare the id with the digest of what the tables hold."""
        stated = self.index.snapshot.to_json()
        for window, digest in zip(stated["windows"], self.digests, strict=True):
            window["digest"] = digest
        own = snapshot_id(stated)
        if own != self.index.id:
            said = f"{start_of(own)}…, the manifest says {start_of(self.index.id)}…"
            self.wrong["id"].append(f"the content gives id {said}")

    def _compare_result(self) -> int:
        """Compare the manifest's result with what the tables hold; return how many numbers."""
        totals, result, options = self.totals, self.result, self.options
        packs, bound = totals["num_packs"], result.lower_bound
        wanted: dict[str, Any] = {name: totals[name] for name in _COUNTED}
        wanted["dropped"] = dict(self.reasons)
        cut = result.num_tokens_cut  # of every copy, and what is lost is counted once
        if not options.continues and not (cut and options.weights):
            wanted["num_tokens_lost"] = totals["lost"] + cut
        wrong = self.wrong["result"]
        if bound > packs:
            wrong.append(f"lower bound {bound} is above {packs} packs")
        for name, value in wanted.items():
            if value != (said := getattr(result, name)):
                wrong.append(f"{name} is {value}, the manifest says {said}")
        block, asked = result.schedule_block, options.global_batch
        if asked is not None and options.schedule != "random" and block != asked:
            wrong.append(f"schedule_block is {block}, planned for was a global batch of {asked}")
        return len(wanted) + 1


_COUNTED = (
    "num_packs",
    "num_tokens",
    "num_dropped",
    "num_samples",
    "num_pieces",
    "num_tokens_dropped",
)


def _bound(text: str, values: dict[str, int]) -> str:
    """A text with the numbers in the place of ``$name``."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(f"${name}", str(values[name]))
    return text


def _offending(
    connection: duckdb.DuckDBPyConnection, rules: list[Rule], values: dict[str, int]
) -> Iterator[str]:
    """A sentence for each rule that rows break."""
    for rule in rules:
        for *cells, number in connection.execute(_bound(rule.sql, values)).fetchall():
            told = amount(int(number), rule.counted)
            yield _bound(rule.sentence, values).format(*cells, told)
