"""Rules that every plan keeps: SQL whose rows break them, over the tables of each window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa

from packidx.errors import PackidxError
from packidx.format.terms import LOST
from packidx.index import Index
from packidx.inspect.sql import rows_of
from packidx.inspect.verify import check_files, check_id
from packidx.lengths.table import read_lengths

TABLES = ("packs", "samples", "dropped")
BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
PLACED = """CREATE OR REPLACE TEMP TABLE placed AS SELECT samples.*, packs.place AS in_pack,
    packs.first_row - {first_row} AS first
    FROM samples ASOF JOIN packs ON samples.place >= packs.first_row - {first_row}"""
MEDIUM = """count(*) FILTER (medium.kind = '{}' AND coalesce(medium.at, 0) >= 0
    AND coalesce(medium.at, 0) < length)"""
RULES = {
    "packs are numbered, and begin where the one before ends": """FROM packs
        WHERE pack_id <> {first_pack} + place OR first_row <> {first_row} +
        coalesce((SELECT sum(num_samples) FROM packs AS p WHERE p.place < packs.place), 0)""",
    "samples are numbered in their packs": """FROM placed
        WHERE pack_id <> {first_pack} + in_pack OR position <> place - first""",
    "samples begin where the one before ends": f"""FROM (SELECT *, coalesce(sum(padded_length) OVER
        (PARTITION BY in_pack ORDER BY place {BEFORE}), 0) AS expected FROM placed)
        WHERE start <> expected""",
    "packs hold all samples of the table": """FROM (SELECT coalesce(sum(num_samples), 0) AS n
        FROM packs) WHERE n <> (SELECT count(*) FROM samples)""",
    "counters of packs are sums over samples": """FROM packs JOIN (SELECT in_pack,
        sum(length) AS length, sum(label_tokens) AS label_tokens, (sum(padded_length) + {unit} - 1)
        // {unit} * {unit} AS padded_length, sum(CAST(length AS BIGINT) * length) AS cost
        FROM placed GROUP BY 1) AS own ON own.in_pack = packs.place
        WHERE packs.length IS DISTINCT FROM own.length OR packs.attention_cost <> own.cost
        OR packs.padded_length <> own.padded_length OR packs.label_tokens <> own.label_tokens""",
    "media of packs are those of their samples": f"""FROM packs JOIN (SELECT in_pack,
        {MEDIUM.format("image")} AS images, {MEDIUM.format("video")} AS videos
        FROM (SELECT in_pack, length, unnest(media) AS medium FROM placed) GROUP BY 1) AS own
        ON own.in_pack = packs.place WHERE (SELECT count(*) = count(media) FROM samples)
        AND (num_images <> images OR num_videos <> videos)""",
    "no pack holds more than the limits allow": """FROM packs WHERE padded_length > {capacity}
        OR num_images > {max_images} OR vision_patches > {max_vision_patches}
        OR num_samples > {max_samples}""",
    "every sample has its number, and a reason to be dropped": """FROM (SELECT sample_id,
        copy + piece AS said FROM samples UNION ALL SELECT sample_id, len(reason) FROM dropped)
        WHERE sample_id IS NULL OR said IS NULL""",
    "no piece is packed twice": """FROM placed
        GROUP BY sample_id, copy, piece HAVING count(*) > 1""",
    "no sample is dropped twice": "FROM dropped GROUP BY sample_id HAVING count(*) > 1",
    "no sample is both packed and dropped": "FROM dropped SEMI JOIN samples USING (sample_id)",
    "every row is packed or dropped": """FROM (SELECT sample_id FROM samples UNION
        SELECT sample_id FROM dropped) HAVING count(*) <> {num_rows}""",
    "samples with media are not split": """FROM samples
        WHERE len(media) > 0 AND (piece > 0 OR token_start > 0)""",
}
TOTALS = f"""SELECT (SELECT count(*) FROM packs) AS num_packs,
    (SELECT sum(length) FROM packs) AS num_tokens, count(*) AS num_pieces,
    count(DISTINCT sample_id) AS num_samples, (SELECT count(*) FROM dropped) AS num_dropped,
    (SELECT sum(greatest(length, 0)) FROM dropped) AS num_tokens_dropped,
    (SELECT sum(greatest(coalesce(length, 0), 0)) FROM dropped
    WHERE reason IN {LOST}) AS lost FROM samples"""
LOCATED = ("source", "key", "shard", "row", "offset", "nbytes")


def broken_rules(index: Index) -> list[str]:
    """Return the rules that a plan breaks: files, id, order, sums, limits, every sample once."""
    broken = [check.detail for check in (check_files(index), check_id(index)) if not check.ok]
    snapshot = index.snapshot
    options, result = snapshot.options, snapshot.result
    caps = ("max_images", "max_vision_patches", "max_samples")
    values: dict[str, Any] = {name: getattr(options, name) or 1 << 62 for name in caps}
    values |= {"capacity": options.planned_capacity, "unit": options.pad_pack_to or 1}
    totals, reasons, last = Counter[str](), Counter[str](), -1
    for placed in snapshot.placed:
        tables = {name: index.window(name, placed.number) for name in TABLES}
        values |= {"first_row": placed.first_piece, "first_pack": placed.first_pack}
        values["num_rows"] = placed.window.num_rows
        with duckdb.connect(config={"python_enable_replacements": False}) as connection:
            for name, rows in tables.items():
                numbered = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
                connection.register("arrow_rows", numbered)
                connection.execute(f"CREATE TABLE {name} AS FROM arrow_rows")
            connection.execute(PLACED.format(**values))
            for rule, sql in RULES.items():
                found = connection.execute(f"SELECT count(*) {sql.format(**values)}").fetchone()
                if found is not None and found[0]:
                    broken.append(f"window {placed.number}: {rule}")
            [totalled] = rows_of(connection, TOTALS.format(**values))
        totals.update({name: int(value or 0) for name, value in totalled.items()})
        reasons.update(tables["dropped"]["reason"].to_pylist())
        ids = [n for name in TABLES[1:] for n in tables[name]["sample_id"].to_pylist()]
        if ids and min(ids) <= last:
            broken.append(f"window {placed.number}: has samples of the one before")
        last = max([last, *ids])
    wanted: dict[str, Any] = dict(totals) | {"dropped": dict(reasons)}
    lost = wanted.pop("lost") + result.num_tokens_cut
    if not (result.num_tokens_cut and options.weights):
        wanted["num_tokens_lost"] = lost  # of a copy, what is cut is counted each time
    broken += [f"result.{n} is not {v}" for n, v in wanted.items() if getattr(result, n) != v]
    if result.lower_bound > totals["num_packs"]:
        broken.append(f"the lower bound {result.lower_bound} is above the number of packs")
    asked = options.global_batch
    if asked is not None and options.schedule != "random" and result.schedule_block != asked:
        broken.append(f"schedule_block is {result.schedule_block}, not the global batch {asked}")
    return broken + _misplaced(index)


def _misplaced(index: Index) -> list[str]:
    """Return the columns in which samples differ from the lengths table, if it is still there."""
    try:
        lengths = read_lengths(index.resolve(index.snapshot.lengths.uri))
    except (PackidxError, OSError):
        return []
    if lengths.fingerprint() != index.snapshot.lengths.fingerprint:
        return []
    rows, samples = lengths.read(0, lengths.num_samples), index.samples()
    names = [name for name in LOCATED if name in lengths.columns]
    counted = pa.table({"sample_id": rows.sample_id, **{n: rows.arrow(n) for n in names}})
    with duckdb.connect(config={"python_enable_replacements": False}) as connection:
        connection.register("samples", samples)
        connection.register("counted", counted)
        joined = "SELECT 1 FROM samples LEFT JOIN counted USING (sample_id) WHERE"
        differ = 'samples."{0}" IS DISTINCT FROM counted."{0}"'
        found = {n: rows_of(connection, f"{joined} {differ.format(n)}") for n in names}
    return [f"samples have another {name} than the lengths table" for name in names if found[name]]
