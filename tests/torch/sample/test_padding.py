"""Samples in packs: padding, dummy images, media that were planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from plan_rules import broken_rules
from small_packs import make_index, media_spans, record
from torch_packs import IMAGE, SyntheticEncode

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError, OptionError
from packidx.torch import PackedDataset
from packidx.torch.sample import normalise_sample

TEXTS = [record(seed, [5 + seed]) for seed in range(6)]
IMAGES = [record(100 + n, [3, (4, 2 + 2 * n), 4, (2, 2), 2 + n]) for n in range(4)]
PAD = 7


class Padding(SyntheticEncode):
    pad_token_id = PAD

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if "seed" in record:
            return super().__call__(record)
        return super().__call__({"seed": 1, "parts": [2, (2, 2), 1]})  # what is made up


PLANS: list[dict[str, Any]] = [
    {"align": 8},
    {"pad_pack_to": 24},
    {"align": 8, "pad_pack_to": 32},
    {"align": 8, "pad_pack_to": 16},
    {"align": 8, "on_long": "split"},
]


@pytest.mark.parametrize("rope", ["rows", None])
@pytest.mark.parametrize("options", PLANS)
def test_padded_as_planned(tmp_path: Path, options: dict[str, Any], rope: str | None) -> None:
    records = TEXTS + (IMAGES if "on_long" not in options else [record(9, [70])])
    index = make_index(tmp_path, {"all": records}, capacity=64, **options)
    encode = Padding(rope=rope)
    wholes = {one["id"]: normalise_sample(encode(one)) for one in records}
    dataset, padding = PackedDataset(index, encode), 0
    for k in range(len(dataset)):
        planned, pack = index.pack(k), dataset[k].joined()
        n, bounds = len(planned.samples), pack["cu_seqlens"].tolist()
        assert len(pack["input_ids"]) == planned.stats["padded_length"] == bounds[-1]
        assert len(pack["sample_ids"]) == n <= len(pack["lengths"]) == len(bounds) - 1
        assert pack["lengths"].dtype == pack["cu_seqlens"].dtype == torch.int32
        assert pack["lengths"].tolist()[:n] == [sample.length for sample in planned.samples]
        assert pack["max_seqlen"] == max(np.diff(bounds))
        for at, sample in enumerate(planned.samples):
            assert bounds[at + 1] - bounds[at] == sample.padded_length
            start, end, stop = bounds[at], bounds[at] + sample.length, bounds[at + 1]
            whole = wholes[str(sample.key)]["input_ids"][sample.token_start :][: sample.length]
            assert torch.equal(pack["input_ids"][start:end], whole)
            assert pack["input_ids"][end:stop].eq(PAD).all()
            assert pack["labels"][end:stop].eq(-100).all()
            assert pack["mm_token_type_ids"][end:stop].eq(0).all()
            text = pack["position_ids"] if rope is None else pack["position_ids"][0]
            assert text[start:stop].tolist() == list(range(stop - start))
            if rope and stop > end:
                rows = pack["position_ids"][1:, start:stop]
                first = int(rows[:, : end - start].max()) + 1
                assert rows[:, end - start :].tolist() == [[*range(first, first + stop - end)]] * 3
        padding += bounds[-1] - int(pack["lengths"].sum())
        if len(pack["lengths"]) > n:  # the pack's own
            start = bounds[n]
            assert len(pack["lengths"]) == n + 1 and pack["lengths"][n] == 0
            assert pack["input_ids"][start:].eq(PAD).all() and pack["labels"][start:].eq(-100).all()
            text = pack["position_ids"].reshape(-1, bounds[-1])[:, start:]
            assert text.tolist() == [list(range(bounds[-1] - start))] * len(text)
    assert padding > 0, "nothing was padded, and nothing tested"


# -- the dummy image -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"align": 4}, {"align": 4, "pad_pack_to": 16}])
def test_a_pack_without_media_gets_a_dummy_image(tmp_path: Path, options: dict[str, Any]) -> None:
    groups = {"text": TEXTS, "image": IMAGES}
    index = make_index(tmp_path, groups, capacity=64, group_by="source", reserve=16, **options)
    plain = PackedDataset(index, Padding())
    dataset = PackedDataset(index, Padding(), dummy_image=True)
    dummies = 0
    for k in range(len(dataset)):
        before, pack = plain[k].joined(), dataset[k].joined()
        if "pixel_values" in before:
            assert all(torch.equal(pack[key], before[key]) for key in ("input_ids", "cu_seqlens"))
            continue
        dummies += 1
        n = len(pack["sample_ids"])
        bounds = pack["cu_seqlens"].tolist()
        start, stop = bounds[n], bounds[n + 1]
        assert torch.equal(pack["sample_ids"], before["sample_ids"])
        assert torch.equal(pack["input_ids"][:start], before["input_ids"][:start])
        assert pack["lengths"][n] == 6 and stop - start == (8 if options else 6)
        assert pack["input_ids"][start:stop].eq(IMAGE).sum() == 1
        assert pack["labels"][start:].eq(-100).all()
        assert pack["position_ids"][0, start:stop].tolist() == list(range(stop - start))
        assert pack["image_grid_thw"].tolist() == [[1, 2, 2]] and len(pack["pixel_values"]) == 4
        assert bounds[-1] % options.get("pad_pack_to", 1) == 0
        assert len(pack["input_ids"]) == bounds[-1] <= before["cu_seqlens"][-1] + 16
    assert 0 < dummies < len(dataset)


def test_the_plan_must_reserve_the_dummy_image(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"text": TEXTS}, capacity=64, align=4, pad_pack_to=16)
    with pytest.raises(OptionError, match="takes 16 tokens and the plan reserves 0 .*--reserve 16"):
        PackedDataset(index, Padding(), dummy_image=True)
    plan_packs(tmp_path / "lengths", tmp_path / "other", capacity=64, align=4, reserve=4)
    dataset = PackedDataset(tmp_path / "other", Padding(), dummy_image=True)
    with pytest.raises(OptionError, match="takes 8 tokens and the plan reserves 4 of each pack's"):
        dataset[0]
    with pytest.raises(OptionError, match="no media for the dummy image.*dummy_image= a record"):
        PackedDataset(index, lambda record: {"input_ids": [1]}, dummy_image=True)


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_the_real_encoder_makes_a_dummy_image(tmp_path: Path, processors: Path, name: str) -> None:
    with open(tmp_path / "data.jsonl", "w") as file:
        for number in range(3):
            turns = [
                {"role": "user", "content": f"What, {number}?"},
                {"role": "assistant", "content": "It is so."},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    folder = processors / name
    data = str(tmp_path / "data.jsonl")
    estimate_lengths(data, tmp_path / "lengths", processor=folder, workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=512)
    encoder = ProcessorEncoder(str(folder))
    with pytest.raises(OptionError, match=r"plan with --reserve \d+$") as caught:
        PackedDataset(tmp_path / "index", encoder, dummy_image=True)
    needed = int(str(caught.value).split()[-1])
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=512, reserve=needed)
    pack = PackedDataset(tmp_path / "index", encoder, dummy_image=True)[0].joined()
    assert len(pack["sample_ids"]) == 3 and len(pack["lengths"]) == 4
    assert len(pack["pixel_values"]) == int(pack["image_grid_thw"].prod())
    assert len(pack["input_ids"]) == pack["cu_seqlens"][3] + needed
    tokens = pack["input_ids"].eq(encoder.media_token_ids["image"])
    assert tokens.sum() * 4 == len(pack["pixel_values"])
    assert not tokens[: pack["cu_seqlens"][3]].any()


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


class Other(SyntheticEncode):
    """Encodes every record as if it had these parts."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = parts

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return super().__call__({**record, "parts": self.parts})


def test_a_split_sample_that_grew_is_told(tmp_path: Path) -> None:
    """Its pieces could all be read; what is behind them would never be."""
    index = make_index(tmp_path, {"all": [record(0, [50])]}, capacity=20, on_long="split")
    (last,) = [k for k in range(3) if index.pack(k).samples[0].length == 10]
    with pytest.raises(MismatchError, match="encoded to 53 tokens but planned as 10 from token 40"):
        PackedDataset(index, Other([53]))[last]


def test_a_cut_sample_whose_image_moved_is_told(tmp_path: Path) -> None:
    """The pack would have it without its image."""
    parts: list[Any] = [15, (4, 4), 18]
    index = make_index(tmp_path, {"all": [record(0, parts)]}, capacity=24, on_long="truncate")
    with pytest.raises(MismatchError, match="has media outside of them"):
        PackedDataset(index, Other([20, (4, 4), 13]))[0]
    assert len(PackedDataset(index, SyntheticEncode())[0].joined()["input_ids"]) == 24
