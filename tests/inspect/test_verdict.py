"""The verdict on a plan and the numbers of `packidx stats`, each the one that SQL gives."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packidx_cli.main import main
from small_packs import make_index, record

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.stats import RANKS, lengths_stats, plan_stats, ranks_stats
from packidx.inspect.verdict import format_percent, plan_verdict

TEXT = [[40 + 3 * (number % 17)] for number in range(600)]


def sources(*named: tuple[str, list[Any]]) -> dict[str, list[dict[str, Any]]]:
    numbers = iter(range(1 << 20))
    return {
        name: [record(next(numbers), parts) for parts in of_source] for name, of_source in named
    }


def planned(folder: Path, rows: dict[str, list[Any]], **options: Any) -> Index:
    """A plan of a bare table with the columns `rows`."""
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    plan_packs(folder / "rows.parquet", folder / "index", **options)
    return open_index(folder / "index")


def sql(index: Index, query: str) -> Any:
    """The one value of `query`, over the tables of a snapshot."""
    with index.duckdb() as connection:
        (row,) = connection.sql(query).fetchall()
    return row[0]


def test_samples_longer_than_a_pack(tmp_path: Path) -> None:
    long = [[300], [20, (40, 40), 20], [700], [(10, 10), 400]]
    given = sources(("text", [*TEXT[:40], [257]]), ("long", long))
    index = make_index(tmp_path, given, capacity=256)
    lost = sql(index, "SELECT sum(length) FROM dropped WHERE reason = 'too_long'")
    every = lost + sql(index, "SELECT sum(length) FROM samples")
    assert plan_verdict(index)[0] == (
        f"{100 * lost / every:.1f} % of the tokens to be packed are in no pack: 5 samples are "
        "longer than a pack (4 of long, 1 of text), the longest is key-43 with 700 tokens; 2 have "
        "media or may have some: a larger `--capacity` keeps them, and so do smaller media "
        "(`--processor-set images.max_pixels=N`, `videos.fps=N`); planning with `--on-long split` "
        "packs the others in pieces"
    )
    (tmp_path / "media").mkdir()
    media = sources(("text", TEXT), ("long", long[1::2]))
    index = make_index(tmp_path / "media", media, capacity=256)
    (said,) = (sentence for sentence in plan_verdict(index) if "longer than a pack" in sentence)
    assert "2 have media" in said and "split" not in said


def test_rejected_records_by_reason_and_sources_that_vanished(tmp_path: Path) -> None:
    rows = {
        "length": [100] * 90 + [None] * 10,
        "source": ["a"] * 90 + ["b"] * 10,
        "status": ["ok"] * 90 + ["rejected"] * 10,
        "reason": [None] * 90 + ["missing_media"] * 10,
    }
    said = plan_verdict(planned(tmp_path, rows, capacity=200))
    assert said[0] == "10 of 100 records are rejected, 10.0 %"
    assert (
        "no sample of source b is in a pack: all its 10 samples are dropped (10 rejected)" in said
    )


def test_a_source_left_out_by_choice_is_not_mourned(tmp_path: Path) -> None:
    rows = {"length": [100] * 20, "source": ["a"] * 10 + ["b"] * 10}
    said = plan_verdict(planned(tmp_path, rows, capacity=200, mix=("b=0",)))
    assert not any("source b" in line for line in said)


def test_packs_of_equals_are_told(tmp_path: Path) -> None:
    rows = {"length": [10] * 900 + [45] * 900}
    index = planned(tmp_path, rows, capacity=90, strategy="bfd")
    assert plan_verdict(index)[0].startswith(
        "packs are not mixed: each holds samples of similar lengths"
    )


def test_caps_that_leave_packs_empty_are_named(tmp_path: Path) -> None:
    index = planned(tmp_path, {"length": [10] * 100}, capacity=100, max_samples=4)
    share = 100 * sql(index, "SELECT avg((num_samples = 4)::INT) FROM packs")
    fill = 100 * sql(index, "SELECT avg(length) / 100 FROM packs")
    assert f"packs are {fill:.1f} % full" in plan_verdict(index)[0]
    assert (
        f"{share:.0f} % of the packs have all 4 that `--max-samples` allows"
        in plan_verdict(index)[0]
    )


def test_what_trains_nothing_is_told(tmp_path: Path) -> None:
    rows = {
        "length": [50] * 40,
        "source": ["a"] * 20 + ["b"] * 20,
        "label_tokens": [20] * 20 + [0] * 20,
    }
    said = plan_verdict(planned(tmp_path, rows, capacity=100))
    assert "source b has no label token in any of its 20 samples" in said[0]


def test_packs_without_media(tmp_path: Path) -> None:
    images = [[30, (40, 40), 20]] * 40
    given = sources(("text", TEXT), ("images", images))
    for reserve, cure in ((0, "`dummy_image=True`, planned with `--reserve`"), (8, "=True`")):
        folder = tmp_path / str(reserve)
        folder.mkdir()
        options = {"capacity": 512, "group_by": "source", "reserve": reserve}
        index = make_index(folder, given, **options)
        none = sql(index, "SELECT count(*) FROM packs WHERE num_images = 0")
        (said,) = [sentence for sentence in plan_verdict(index) if "no image" in sentence]
        assert said.startswith(f"{none:,} of {index.num_packs:,} packs") and said.endswith(cure)
    (tmp_path / "text").mkdir()
    alone = make_index(tmp_path / "text", sources(("text", TEXT)), capacity=512)
    assert not [sentence for sentence in plan_verdict(alone) if "no image" in sentence]


def rows_of_a_table() -> dict[str, list[Any]]:
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


def test_damage_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"length": range(1, 5000)}), path)
    data = bytearray(path.read_bytes())
    data[200:204] = bytes(4)
    path.write_bytes(data)
    assert main(["stats", str(path)]) == 1
    err = capsys.readouterr().err
    assert "is damaged" in err and "defect" not in err and err.count("\n") == 1


def test_each_number_is_the_one_of_sql(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows_of_a_table()), path)
    told = lengths_stats(str(path))
    found = {source["name"]: source for source in told["sources"]}
    ok, modality = "status = 'ok'", "num_images + video_tokens + audio_tokens = 0"
    query = f"""
        SELECT source, count(*) AS number, count(*) FILTER ({ok}) AS ok,
            coalesce(sum(length) FILTER ({ok}), 0) AS tokens,
            sum(label_tokens) FILTER ({ok}) AS labels,
            quantile_disc(length, 0.5) FILTER ({ok}) AS median, max(length) AS longest,
            count(*) FILTER ({ok} AND {modality}) AS text,
            count(*) FILTER (
                {ok} AND num_images + video_tokens = 0 AND audio_tokens IS NULL) AS unknown,
            count(*) FILTER ({ok} AND num_images > 0 AND video_tokens > 0) AS mixed,
            sum(num_images) FILTER ({ok}) AS images
        FROM '{path}' GROUP BY source"""
    for row in duckdb.sql(query).to_arrow_table().to_pylist():
        source = found[row["source"]]
        assert (source["num_samples"], source["num_ok"]) == (row["number"], row["ok"])
        rejected = row["number"] - row["ok"]
        assert source["num_rejected"] == source["rejected"]["no_text"] == rejected
        assert (source["num_tokens"], source["label_tokens"]) == (row["tokens"], row["labels"])
        length, kinds = source["length"], source["modality"]
        assert (length["p50"], length["max"]) == (row["median"], row["longest"])
        assert (kinds["text"], kinds["mixed"]) == (row["text"], row["mixed"])
        assert kinds["unknown"] == row["unknown"] > 0
        assert source["num_images"] == row["images"]
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


def planned_lengths(folder: Path, lengths: list[int], **options: Any) -> Index:
    table = {"length": lengths, "source": [("a", "b", None)[n % 3] for n in lengths]}
    pq.write_table(pa.table(table), folder / "l.parquet")
    plan_packs(folder / "l.parquet", folder / "i", capacity=100, **options)
    return open_index(folder / "i")


def test_verbose_has_tables_of_steps_and_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths(tmp_path / "l.parquet", 6000, 0)
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=512)
    capsys.readouterr()
    assert main(["stats", str(tmp_path / "i"), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "useful time, ranks" in out and "random order" in out


@pytest.mark.parametrize("options", [{}, {"max_samples": 2}, {"on_long": "split"}])
def test_the_correlation_of_lengths_is_that_of_all_pairs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    index = planned_lengths(tmp_path, [1 + at * 7919 % 140 for at in range(300)], **options)
    found = plan_stats(index)["length_correlation"]
    packs = [index.pack(number).samples for number in range(index.num_packs)]
    pairs = [(a.length, b.length) for pack in packs for a, b in permutations(pack, 2)]
    expected = np.corrcoef(np.array(pairs, float).T)[0, 1]
    assert found == pytest.approx(expected, abs=1e-9)


def packs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random(n) * 1e14, rng.random(n) * 1e13


@given(st.integers(0, 120), st.sampled_from([1, 2, 4, 6, 9]), st.sampled_from([4, 12, 20]))
def test_the_planned_order_by_hand(n: int, ranks: int, batch: int) -> None:
    llm, vit = packs(n, n)
    (found,) = ranks_stats(llm, vit, batch, [ranks])
    step = math.ceil(batch / ranks) * ranks
    steps = n // step
    assert (found["ranks"], found["global_batch"], found["steps"]) == (ranks, step, steps)
    assert found["micro_steps"] * ranks == step
    if not steps:
        assert found["planned"] is found["random"] is None
        return
    whole = steps * step
    total = (llm + vit)[:whole].reshape(-1, ranks)
    apart = [cost[:whole].reshape(-1, ranks).max(axis=1).sum() for cost in (llm, vit)]
    plan = found["planned"]
    assert plan["useful"] == pytest.approx(total.mean(axis=1).sum() / total.max(axis=1).sum(), 1e-4)
    assert plan["useful_by_phase"] == pytest.approx(total.mean(axis=1).sum() / sum(apart), 1e-4)
    assert plan["useful_by_phase"] <= plan["useful"] + 1e-6 <= 1 + 1e-6


def test_few_packs_are_null() -> None:
    stats = ranks_stats(*packs(600), 64)
    assert [one["ranks"] for one in stats] == list(RANKS)
    assert [one["global_batch"] for one in stats] == [64, 64, 512]
    assert [one["steps"] for one in stats] == [9, 9, 1]
    assert stats[2]["planned"]["useful"]
    assert json.loads(json.dumps(stats, allow_nan=False)) == stats
    nothing = ranks_stats(*packs(0), 64)
    assert all(one["planned"] is None and one["steps"] == 0 for one in nothing)


def lengths(path: Path, n: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    pq.write_table(pa.table({"length": rng.lognormal(4, 1, n).astype(int) % 500 + 4}), path)
    return path


def verdicts(index: Path) -> tuple[str, dict[str, Any]]:
    """Return the sentence about waiting, and its numbers."""
    opened = open_index(index)
    told = plan_stats(opened)
    (said,) = (line for line in plan_verdict(opened, told) if "lost to waiting" in line)
    return said, told["schedule"][0]


def test_where_a_schedule_has_power_is_told(tmp_path: Path) -> None:
    path = lengths(tmp_path / "l.parquet", 6000, 0)
    # Of two micro-steps a step, of other packs in each: no rank waits long where there are two.
    plan_packs(path, tmp_path / "i", capacity=512, global_batch=16, micro_steps=2)
    said, found = verdicts(tmp_path / "i")
    lost = format_percent(100 * (1 - found["planned"]["useful_by_phase"]))
    assert f"{lost} of the time" in said
    plan_packs(path, tmp_path / "r", capacity=512, global_batch=8, schedule="random")
    assert "in random order" in verdicts(tmp_path / "r")[0]


def test_plan_says_for_how_many_ranks_its_schedule_has_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lengths(tmp_path / "l.parquet", 600, 0))
    command = ["plan", path, "-o", str(tmp_path / "i"), "--capacity", "512"]
    assert main([*command, "--global-batch", "16", "--micro-steps", "4"]) == 0
    assert "stratified: 4 micro-steps of 4 packs per step, for up to 4 ranks" in (
        capsys.readouterr().out
    )
    assert main([*command, "--global-batch", "16", "--micro-steps", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one micro-step per step, for up to 16 ranks; steps are of" in said


def test_the_verdict_speaks_of_the_plans_own_ranks(tmp_path: Path) -> None:
    path = lengths(tmp_path / "l.parquet", 6000, 0)
    for size, steps, ranks in ((16, 16, [1]), (16, 2, [8]), (1024, 8, [8, 64, 128])):
        index = plan_packs(path, tmp_path / "i", capacity=64, on_long="drop", global_batch=size,
                           micro_steps=steps)  # fmt: skip
        opened = open_index(index.path)
        told = plan_stats(opened)
        assert [each["ranks"] for each in told["schedule"]] == ranks
        said = [line for line in plan_verdict(opened, told) if "lost to waiting" in line]
        assert all(f"at {ranks[-1]} rank" in line for line in said)
    assert said
