"""`packidx stats LENGTHS`: every number is the one that SQL gives of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.inspect.stats import lengths_stats


def rows() -> dict[str, list[Any]]:
    rng = np.random.default_rng(3)
    number = 500
    bad = rng.random(number) < 0.1
    return {
        "sample_id": list(range(number)),
        "source": ["ä photos" if n % 3 else None for n in range(number)],
        "key": [f"k{n}" if n % 7 else None for n in range(number)],
        "length": [
            None if b else int(n) for n, b in zip(rng.integers(1, 9000, number), bad, strict=True)
        ],
        "label_tokens": [None if b else 1 for b in bad],
        "num_images": [int(n) for n in rng.integers(0, 3, number)],
        "image_tokens": [None] * number,
        "video_tokens": [int(n) for n in rng.integers(0, 2, number)],
        "audio_tokens": [0 if n % 5 else None for n in range(number)],
        "method": ["exact" if n % 2 else "precomputed" for n in range(number)],
        "status": ["rejected" if b else "ok" for b in bad],
        "reason": ["no_text" if b else None for b in bad],
    }


def test_each_number_is_the_one_of_sql(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows()), path)
    told = lengths_stats(str(path))
    found = {source["name"]: source for source in told["sources"]}
    query = f"""
        SELECT source, count(*), count(*) FILTER (status = 'ok'),
            coalesce(sum(length) FILTER (status = 'ok'), 0),
            sum(label_tokens) FILTER (status = 'ok'),
            quantile_disc(length, 0.5) FILTER (status = 'ok'), max(length),
            count(*) FILTER (status = 'ok' AND num_images + video_tokens + audio_tokens = 0),
            count(*) FILTER (
                status = 'ok' AND num_images + video_tokens = 0 AND audio_tokens IS NULL),
            count(*) FILTER (status = 'ok' AND num_images > 0 AND video_tokens > 0),
            sum(num_images) FILTER (status = 'ok')
        FROM '{path}' GROUP BY source"""
    for (
        name,
        number,
        ok,
        tokens,
        labels,
        median,
        longest,
        text,
        unknown,
        mixed,
        images,
    ) in duckdb.sql(query).fetchall():
        source = found[name]
        assert (source["num_samples"], source["num_ok"]) == (number, ok)
        assert source["num_rejected"] == number - ok == source["rejected"]["no_text"]
        assert (source["num_tokens"], source["label_tokens"]) == (tokens, labels)
        assert (source["length"]["p50"], source["length"]["max"]) == (median, longest)
        assert (source["modality"]["text"], source["modality"]["mixed"]) == (text, mixed)
        assert source["modality"]["unknown"] == unknown > 0
        assert source["num_images"] == images
    lengths = duckdb.sql(f"SELECT length FROM '{path}' WHERE status = 'ok' ORDER BY 1 DESC LIMIT 5")
    assert [row["length"] for row in told["longest"]] == [n for (n,) in lengths.fetchall()]
    assert sum(told["methods"].values()) == told["num_ok"]


def test_files_with_other_columns_and_nothing_but_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"length": [5, 70]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"length": [9], "source": ["x"]}), tmp_path / "b.parquet")
    told = lengths_stats(str(tmp_path / "*.parquet"))
    assert {source["name"]: source["num_tokens"] for source in told["sources"]} == {
        None: 75,
        "x": 9,
    }
    assert told["label_tokens"] is None and told["methods"] == {}
    assert main(["stats", str(tmp_path)]) == 0
    assert "75" in capsys.readouterr().out


def test_what_no_plan_can_be_made_of_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.parquet"
    columns = {
        "length": pa.nulls(3, pa.int32()),
        "status": ["rejected"] * 3,
        "reason": ["no_text"] * 3,
    }
    pq.write_table(pa.table(columns), path)
    assert main(["stats", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_rejected"], told["rejected"], told["longest"]) == (3, {"no_text": 3}, [])
    assert main(["stats", str(path)]) == 0
