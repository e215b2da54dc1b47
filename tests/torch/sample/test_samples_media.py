"""`samples.media`: the media of each sample, and what a reader compares with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import file_of, refresh
from plan_rules import broken_rules
from small_packs import make_index, media_spans, record
from torch_packs import SyntheticEncode

from packidx.errors import MismatchError
from packidx.format.schema import PLANNED_MEDIA
from packidx.index import open_index
from packidx.plan import plan_packs
from packidx.torch import PackedDataset

RECORDS = [
    record(0, [5, (4, 4), 3]),
    record(1, [20, (4, 8), 70, (4, 4), 9]),  # long: its last image would be cut off
    record(2, [7]),
    record(3, [(4, 6), (4, 4), 2]),
    record(4, [9, (4, 8), 70]),  # long: what lies behind its image may be cut off
    record(5, [90]),
]


@pytest.mark.parametrize("rules", [{}, {"on_long": "split"}, {"on_long": "truncate"}])
def test_planned_media_of_every_sample(tmp_path: Path, rules: dict[str, Any]) -> None:
    index = make_index(tmp_path, {"all": RECORDS}, capacity=64, **rules)
    dataset, found = PackedDataset(index, SyntheticEncode()), dict[int, int]()
    for k in range(index.num_packs):
        for sample, read in zip(index.pack(k).samples, dataset[k].samples, strict=True):
            spans = media_spans(RECORDS[sample.sample_id]["parts"])
            kept = ("kind", "t", "h", "w", "at")
            assert sample.media == [{key: one[key] for key in kept} for one in spans]
            assert len(read["input_ids"]) == sample.length
            assert len(read.get("image_grid_thw", ())) == len(spans)
            found[sample.sample_id] = found.get(sample.sample_id, 0) + sample.length
    assert broken_rules(index) == []
    of_long = {"split": {5: 90}, "truncate": {4: 64, 5: 64}}.get(rules.get("on_long", ""), {})
    assert found == {0: 14, 2: 7, 3: 16} | of_long


def test_lengths_without_media_leave_the_column_out(tmp_path: Path) -> None:
    made = make_index(tmp_path, {"all": RECORDS[:1]}, capacity=64)
    folder = tmp_path / "lengths"
    part = folder / "part-00000.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["media"]), part)
    refresh(folder)
    plan_packs(tmp_path / "lengths", tmp_path / "other", capacity=64)
    index = open_index(tmp_path / "other")
    assert "media" not in pq.read_schema(file_of(index, "samples")).names
    assert index.samples(["media"])["media"].to_pylist() == [None]
    assert index.pack(0).samples[0].media is None
    assert index.id == made.id  # media are not part of it: the lengths' fingerprint is


def test_the_rules_of_plans_see_media_that_are_missing(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": RECORDS}, capacity=200)
    file = file_of(index, "samples")
    table = pq.read_table(file)
    media = [one[:-1] if one else one for one in table["media"].to_pylist()]
    column = table.schema.get_field_index("media")
    pq.write_table(table.set_column(column, "media", pa.array(media, PLANNED_MEDIA)), file)
    refresh(index)
    broken = broken_rules(open_index(index.path))
    assert "window 0: media of packs are those of their samples" in broken


def test_the_reader_checks_what_was_encoded_against_the_planned_grids(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": RECORDS[:1]}, capacity=64)

    class Lying(SyntheticEncode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            result = super().__call__(record)
            result["image_grid_thw"] = result["image_grid_thw"][:, [0, 1, 1]] * 2
            return result

    with pytest.raises(MismatchError, match=r"images of 2x8x8 patches.*planned as 1x4x4"):
        PackedDataset(index, Lying())[0]


def test_a_split_sample_that_grew_is_told(tmp_path: Path) -> None:
    """Its pieces could all be read; what is behind them would never be."""
    index = make_index(tmp_path, {"all": [record(0, [50])]}, capacity=20, on_long="split")

    class Grown(SyntheticEncode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            return super().__call__({**record, "parts": [53]})

    dataset = PackedDataset(index, Grown())
    (last,) = [k for k in range(3) if index.pack(k).samples[0].length == 10]
    with pytest.raises(MismatchError, match="encoded to 53 tokens but planned as 10 from token 40"):
        dataset[last]


def test_a_sample_that_lost_its_images_is_left_out(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": [RECORDS[0], RECORDS[3]]}, capacity=64)

    class Blind(SyntheticEncode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            blind = {**record, "parts": [5]} if record["seed"] == 0 else record
            return super().__call__(blind)

    with pytest.raises(MismatchError, match="encoded to 5 tokens but planned as 14"):
        PackedDataset(index, Blind())[0]
    found = PackedDataset(index, Blind(), on_mismatch="skip")[0]
    assert found.sample_ids.tolist() == [1]
    assert len(found.joined()["input_ids"]) == 14 + 16
    assert [(one["done"], one["key"]) for one in found.events] == [("left_out", "key-0")]


def test_a_shard_that_is_cut_while_it_is_read_skips_nothing(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": RECORDS}, capacity=200)
    dataset = PackedDataset(index, SyntheticEncode(), on_bad="skip")
    dataset[0]
    shard = Path(index.manifest["shards"][0]["uri"])
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(MismatchError, match="has 100 bytes, .* when it was planned"):
        dataset[0]


def test_a_cut_sample_whose_image_moved_is_told(tmp_path: Path) -> None:
    """The pack would have it without its image."""
    parts: list[Any] = [15, (4, 4), 18]
    index = make_index(tmp_path, {"all": [record(0, parts)]}, capacity=24, on_long="truncate")

    class Moved(SyntheticEncode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            return super().__call__({**record, "parts": [20, (4, 4), 13]})

    with pytest.raises(MismatchError, match="has images outside of them"):
        PackedDataset(index, Moved())[0]
    assert len(PackedDataset(index, SyntheticEncode())[0].joined()["input_ids"]) == 24


@pytest.mark.parametrize("on_long", ["split", "truncate"])
def test_a_sample_between_the_longest_piece_and_the_capacity_is_read(
    tmp_path: Path, on_long: str
) -> None:
    records = [record(0, [19])]
    index = make_index(tmp_path, {"all": records}, capacity=20, align=8, on_long=on_long)
    dataset = PackedDataset(index, SyntheticEncode())
    lengths = [dataset[k].joined()["lengths"].tolist() for k in range(index.num_packs)]
    assert sorted(lengths) == ([[3], [16]] if on_long == "split" else [[16]])
