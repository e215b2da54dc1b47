"""What is drawn of a source depends on that source alone, and not on what is added elsewhere."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx import estimate_lengths, open_index, plan_packs

DRAWS: dict[str, dict[str, Any]] = {
    "weight": {"mix": ("b=0.5",)},
    "copies": {"mix": ("b=2.5",)},
    "holdout": {"holdout": "0.3"},
    "all of it": {"mix": ("b=1.5",), "holdout": "0.2", "window": 2},
}


def write(path: Path, number: int, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(number):
        record: dict[str, Any] = {"id": f"{path}-{n}"} if kind == "named" else {}
        said = {"role": "assistant", "content": f"{n} " + "word " * (n % 9)}
        record["messages"] = [{"role": "user", "content": path.name}, said]
        rows.append(json.dumps(record))
    path.write_text("\n".join(rows) + "\n")


CHANGES: dict[str, Callable[[Path, str], Any]] = {
    "records in another source": lambda data, kind: write(data / "a/own.jsonl", 60, kind),
    "a file of the same name in another": lambda data, kind: write(data / "a/data.jsonl", 7, kind),
    "a shard before all others": lambda data, kind: write(data / "a/0.jsonl", 5, kind),
    "another source": lambda data, kind: write(data / "0/data.jsonl", 11, kind),
    "a source less": lambda data, kind: shutil.rmtree(data / "a"),
    "records at the end of it": lambda data, kind: write(data / "b/data.jsonl", 80, kind),
    "a shard at the end of it": lambda data, kind: write(data / "b/z/data.jsonl", 20, kind),
}


def drawn(data: Path, options: dict[str, Any]) -> dict[tuple[str, int], int]:
    """How often an epoch has samples of each record of the source b, by its shard and row."""
    out = data.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    sources = [f"{path.name}={path}" for path in sorted(data.iterdir())]
    estimate_lengths(sources, out / "l", workers=1)
    plan_packs(out / "l", out / "i", capacity=512, **options)
    index = open_index(out / "i")
    uris = [shard.uri for shard in index.snapshot.shards]
    rows = [row for row in index.samples().to_pylist() if row["source"] == "b"]
    return Counter((uris[row["shard"]], row["row"]) for row in rows)


@pytest.mark.parametrize(
    ("draw", "kind"),
    [*((draw, "unnamed") for draw in DRAWS), ("all of it", "named")],
)
def test_other_sources_exchange_no_sample(tmp_path: Path, draw: str, kind: str) -> None:
    data = tmp_path / "data"
    write(data / "a/own.jsonl", 40, kind)
    write(data / "b/data.jsonl", 60, kind)
    write(data / "b/more.jsonl", 60, kind)
    had = {(str(data / f"b/{name}.jsonl"), n) for name in ("data", "more") for n in range(60)}
    before = drawn(data, DRAWS[draw])
    assert 30 < len(before) <= 120
    for change, apply in CHANGES.items():  # one after the other
        apply(data, kind)
        after = drawn(data, DRAWS[draw])
        kept = {place: number for place, number in after.items() if place in had}
        assert kept == before, change
    assert len(after) > len(before)


@pytest.mark.parametrize("draw", DRAWS)
def test_bare_tables(tmp_path: Path, draw: str) -> None:
    """They name no shards: a sample is drawn by its place among the rows of its source."""

    def drawn_of(num_others: int, mixed: bool) -> Counter[int]:
        rows = [("a", n) for n in range(num_others)] + [("b", n) for n in range(100)]
        rows = sorted(rows, key=lambda row: row[1]) if mixed else rows
        sources, numbers = zip(*rows, strict=True)
        columns = {"source": sources, "row": numbers, "length": [50] * len(rows)}
        out = tmp_path / f"{num_others}{mixed}"
        pq.write_table(pa.table(columns), f"{out}.parquet")
        options = DRAWS[draw] | {"window": 90}  # samples, where a table names no shards
        plan_packs(f"{out}.parquet", out, capacity=512, **options)
        samples = open_index(out).samples().to_pylist()
        return Counter(row["row"] for row in samples if row["source"] == "b")

    want = drawn_of(60, mixed=False)
    assert want == drawn_of(80, mixed=False) == drawn_of(60, mixed=True)
