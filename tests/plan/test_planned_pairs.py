"""Preference pairs are units: never parted, whatever chooses, draws, packs, or goes on."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training import Training

from packidx import open_index, plan_packs
from packidx.errors import FormatError, OptionError, PackidxError
from packidx.index import Index

SIDES = ("chosen", "rejected")
Unit = tuple[int, ...]
"""Lengths of one sample, or of the two sides of a pair."""


def write(path: Path, units: Sequence[Unit], first: int = 0) -> Path:
    """A bare lengths table of these units."""
    rows = []
    for number, unit in enumerate(units, start=first):
        for at, length in enumerate(unit):
            row = {"length": length, "pair": SIDES[at] if len(unit) == 2 else None}
            row |= {"key": f"k{number}", "source": "ab"[number % 2]}
            row |= {"num_images": length % 3, "num_videos": 0, "vision_patches": 4 * length}
            row |= {"image_tokens": 0, "audio_tokens": 0, "label_tokens": length // 2}
            rows.append({**row, "sample_id": len(rows), "status": "ok"})
    table = pa.Table.from_pylist(rows)
    pair = pa.array([row["pair"] for row in rows], pa.string())
    table = table.set_column(table.schema.get_field_index("pair"), "pair", pair)
    pq.write_table(table, path)
    return path


def check(index: Index, units: Sequence[Unit], taken: set[int] | None = None) -> None:
    """Every pair of the snapshot is whole, and every sample somewhere."""
    of_sample = {}
    for unit in units:
        first = len(of_sample)
        of_sample.update({first + at: (first, len(unit)) for at in range(len(unit))})
    samples = index.samples().to_pylist()
    seen: Counter[tuple[int, int]] = Counter()
    for at, row in enumerate(samples):
        first, size = of_sample[row["sample_id"]]
        if size == 1:
            assert row["pair"] is None
            continue
        assert row["piece"] == row["token_start"] == 0
        assert row["pair"] == SIDES[row["sample_id"] - first]
        seen[row["sample_id"], row["copy"]] += 1
        if row["pair"] == "chosen":
            after = samples[at + 1]
            assert (after["pack_id"], after["position"]) == (row["pack_id"], row["position"] + 1)
            assert (after["sample_id"], after["copy"]) == (first + 1, row["copy"])
        else:
            assert samples[at - 1]["sample_id"] == first
    assert set(seen.values()) <= {1}
    dropped = {row["sample_id"]: row["reason"] for row in index.dropped().to_pylist()}
    packed = {row["sample_id"] for row in samples}
    assert packed | dropped.keys() == set(of_sample)
    assert not packed & dropped.keys()
    for first, size in of_sample.values():
        if size == 2:
            assert dropped.get(first) == dropped.get(first + 1)


LENGTHS = st.integers(0, 70)
UNITS = st.lists(
    st.one_of(st.tuples(LENGTHS), st.tuples(LENGTHS, LENGTHS), st.tuples(LENGTHS, LENGTHS)),
    min_size=1,
    max_size=60,
).map(lambda units: [(5,), (6,), *units])
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "strategy": st.sampled_from(["auto", "bfd", "window:4"]),
    "on_long": st.sampled_from(["drop", "split", "truncate"]),
    "mix": st.sampled_from([(), ("a=2.5",), ("a=0.5", "b=3"), ("b=0",)]),
    "group_by": st.sampled_from([None, "source", "media_type"]),
    "max_samples": st.sampled_from([None, 1, 2, 3, 5]),
    "max_images": st.sampled_from([None, 2, 3]),
    "align": st.sampled_from([1, 4]),
    "holdout": st.sampled_from([None, "0.3"]),
    "window": st.sampled_from(["4GB", 7]),
    "schedule": st.sampled_from(["random", "stratified"]),
    "seed": st.integers(0, 3),
}


def chosen_options(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(OPTIONS)), max_size=5))
    drawn = {name: draw(OPTIONS[name]) for name in sorted(names)}
    return {name: value for name, value in drawn.items() if value is not None}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), units=UNITS)
def test_no_pair_is_ever_parted(data: st.DataObject, units: list[Unit]) -> None:
    options = data.draw(st.composite(chosen_options)())
    with tempfile.TemporaryDirectory() as folder:
        lengths = write(Path(folder, "l.parquet"), units)
        try:
            plan_packs(lengths, Path(folder, "i"), capacity=64, **options)
        except PackidxError as error:
            assert any(word in str(error) for word in ("nothing to pack", "is below every usable"))
            return
        check(open_index(Path(folder, "i")), units)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), units=UNITS)
def test_training_has_had_both_sides_or_none(data: st.DataObject, units: list[Unit]) -> None:
    """Continued at any step, with other capacities and weights, again and again."""
    with tempfile.TemporaryDirectory() as folder:
        lengths = write(Path(folder, "l.parquet"), units)
        index, had = Path(folder, "i"), Counter[int]()
        options: dict[str, Any] = {"on_long": data.draw(st.sampled_from(["drop", "split"]))}
        resume = None
        for _ in range(3):
            changed: dict[str, Any] = {"capacity": data.draw(st.sampled_from([64, 90, 150]))}
            changed |= {"mix": data.draw(st.sampled_from([(), ("a=2.5",), ("b=2",)]))}
            try:
                plan_packs(lengths, index, **options, **changed, resume=resume)
            except PackidxError as error:
                assert any(w in str(error) for w in ("nothing to pack", "is below every usable"))
                return
            snapshot = open_index(index)
            sides: dict[tuple[int, int], list[str]] = defaultdict(list)
            if resume is None:
                check(snapshot, units)
            for row in snapshot.samples().to_pylist():
                if row["pair"]:
                    first = row["sample_id"] - (row["pair"] == "rejected")
                    sides[row["pack_id"], first].append(row["pair"])
            assert set(map(tuple, sides.values())) <= {SIDES}
            sampler = Training(snapshot, global_batch=1)
            steps = data.draw(st.integers(1, snapshot.num_packs))
            done = {pack for step in range(steps) for pack in sampler.packs_of_step(step)}
            for row in snapshot.samples().to_pylist():
                had[row["sample_id"]] += row["pack_id"] in done
            resume = (snapshot, sampler.state_at(steps))
            at = 0
            for unit in units:
                if len(unit) == 2:
                    assert had[at] == had[at + 1]
                at += len(unit)


def test_excluding_one_side_excludes_both(tmp_path: Path) -> None:
    units = [(10, 20), (30,), (12, 14), (15, 16)]
    lengths = write(tmp_path / "l.parquet", units)
    out = tmp_path / "x.parquet"
    pq.write_table(pa.table({"sample_id": [1, 3]}), out)
    plan_packs(lengths, tmp_path / "i", capacity=100, exclude=str(out))
    dropped = open_index(tmp_path / "i").dropped().to_pylist()
    assert [row["sample_id"] for row in dropped] == [0, 1, 3, 4]
    pq.write_table(pa.table({"key": ["k0"]}), out)
    plan_packs(lengths, tmp_path / "j", capacity=100, exclude=str(out))
    assert open_index(tmp_path / "j").dropped()["sample_id"].to_pylist() == [0, 1]


@pytest.mark.parametrize("on_long", ["drop", "split", "truncate"])
def test_a_pair_that_does_not_fit_is_dropped_whole(tmp_path: Path, on_long: str) -> None:
    units = [(60, 50), (190, 3), (40, 60), (150,)]
    lengths = write(tmp_path / "l.parquet", units)
    plan_packs(lengths, tmp_path / "i", capacity=100, on_long=on_long)
    index = open_index(tmp_path / "i")
    rows = [row for row in index.dropped().to_pylist() if row["sample_id"] < 6]
    assert [(row["sample_id"], row["reason"]) for row in rows] == [
        (number, "too_long") for number in (0, 1, 2, 3)
    ]
    assert rows[0]["detail"] == "a pair of 110 tokens > 100"
    check(index, units)
    with pytest.raises(OptionError, match="and the other side of its pair with 193"):
        plan_packs(lengths, tmp_path / "e", capacity=100, on_long="error")


def test_caps_are_of_both_sides(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", [(10, 11), (9,), (12, 9)])
    plan_packs(lengths, tmp_path / "i", capacity=100, max_samples=1)
    rows = open_index(tmp_path / "i").dropped().to_pylist()
    assert [row["sample_id"] for row in rows] == [0, 1, 3, 4]
    assert {row["detail"] for row in rows} == {"a pair of 2 > 1 per pack"}
    plan_packs(lengths, tmp_path / "j", capacity=100, max_samples=2)
    packs = open_index(tmp_path / "j").packs().to_pylist()
    assert sorted(pack["num_samples"] for pack in packs) == [1, 2, 2]
    squares = {pack["attention_cost"] for pack in packs}
    assert squares == {81, 100 + 121, 144 + 81}
    assert {pack["num_images"] for pack in packs} == {0, 1 + 2}


@pytest.mark.parametrize(
    "sides",
    [
        ["chosen", None],
        [None, "rejected"],
        ["rejected", "chosen"],
        ["chosen", "chosen", "rejected"],
        ["chosen", "rejected", "rejected"],
        ["best", "rejected"],
    ],
)
def test_a_side_that_stands_alone_is_told(tmp_path: Path, sides: list[str | None]) -> None:
    lengths = tmp_path / "l.parquet"
    pair = pa.array(sides, pa.string())
    pq.write_table(pa.table({"length": np.full(len(sides), 9), "pair": pair}), lengths)
    with pytest.raises(FormatError, match="a side of a preference pair stands alone"):
        plan_packs(lengths, tmp_path / "i", capacity=100)


def test_without_pairs_there_is_no_column(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", [(10,), (20,)])
    plan_packs(lengths, tmp_path / "i", capacity=100)
    (path,) = (tmp_path / "i").rglob("samples-*.parquet")
    assert "pair" not in pq.read_schema(path).names
    assert open_index(tmp_path / "i").samples()["pair"].null_count == 2


@pytest.mark.parametrize(
    "options",
    [{"mix": ("a=0.5", "b=1.5")}, {"holdout": "0.3"}, {"holdout_only": "0.3"}],
)
def test_a_pair_is_drawn_as_its_chosen_side_alone_is(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Each side by itself would be drawn otherwise, and of two draws few pairs would be left."""
    pairs = pq.read_table(write(tmp_path / "l.parquet", [(20, 20)] * 400)).drop_columns(["key"])
    pq.write_table(pairs, tmp_path / "l.parquet")
    pq.write_table(pairs.drop_columns(["pair"]), tmp_path / "alone.parquet")
    packed = []
    for name in ("l", "alone"):
        plan_packs(tmp_path / f"{name}.parquet", tmp_path / name, capacity=100, **options)
        rows = open_index(tmp_path / name).samples().to_pylist()
        packed.append(sorted((row["sample_id"], row["copy"]) for row in rows))
    both, single = packed
    single = [(sample, copy) for sample, copy in single if sample % 2 == 0]  # the chosen sides
    assert both == sorted([*single, *((sample + 1, copy) for sample, copy in single)])
    assert 100 < len(single) < 500
