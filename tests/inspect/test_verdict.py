"""The verdict on a plan: what costs most comes first, and each number is the one SQL gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_packs import make_index, record

from packidx.index import Index, open_index
from packidx.inspect.verdict import plan_verdict
from packidx.plan import plan_packs

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
