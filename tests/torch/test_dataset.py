"""PackedDataset: what a pack holds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_packs import length_of, make_index, record
from torch_packs import SyntheticEncode

from packidx.errors import MismatchError
from packidx.index import Index
from packidx.torch import PackedDataset

TEXTS = [record(seed, [5 + seed]) for seed in range(6)]
IMAGES = [record(100 + n, [3, (4, 2 + 2 * n), 4, (2, 2), 2 + n]) for n in range(4)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"text": TEXTS, "image": IMAGES}, capacity=64)


def every(dataset: PackedDataset) -> list[dict[str, Any]]:
    return [pack.joined() for pack in dataset]


def test_a_pack_is_its_samples_in_order(index: Index) -> None:
    encode = SyntheticEncode()
    dataset = PackedDataset(index, encode)
    by_key = {one["id"]: encode(one) for one in TEXTS + IMAGES}
    seen = []
    for k, pack in enumerate(every(dataset)):
        samples = index.pack(k).samples
        parts = [by_key[sample.key] for sample in samples]
        lengths = [len(part["input_ids"]) for part in parts]
        assert pack["pack_id"] == k
        assert pack["sample_ids"].tolist() == [sample.sample_id for sample in samples]
        names = [source["name"] for source in index.manifest["sources"]]
        assert [names[at] for at in pack["source_ids"]] == [sample.source for sample in samples]
        assert torch.equal(pack["input_ids"], torch.cat([part["input_ids"] for part in parts]))
        assert pack["cu_seqlens"].dtype == torch.int32
        assert pack["cu_seqlens"].tolist() == np.cumsum([0, *lengths]).tolist()
        assert pack["max_seqlen"] == max(lengths)
        assert pack["position_ids"].shape == (4, sum(lengths))
        text = torch.cat([torch.arange(length) for length in lengths])
        assert torch.equal(pack["position_ids"][0], text)
        rows = torch.cat([part["position_ids"] for part in parts], dim=1)
        assert torch.equal(pack["position_ids"][1:], rows)
        for key in ("pixel_values", "image_grid_thw"):
            tensors = [part[key] for part in parts if key in part]
            assert torch.equal(pack[key], torch.cat(tensors)) if tensors else key not in pack
        labels = pack["input_ids"].clone()
        labels[pack["cu_seqlens"][:-1].long()] = -100
        assert torch.equal(pack["labels"], labels)
        seen += pack["sample_ids"].tolist()
    assert sorted(seen) == list(range(len(TEXTS) + len(IMAGES)))


def test_indexing(index: Index) -> None:
    dataset = PackedDataset(str(index.path), SyntheticEncode())
    last = len(dataset) - 1
    assert dataset[np.int64(last)].pack_id == last
    assert dataset[torch.tensor(last)].pack_id == last
    assert dataset[-1].pack_id == last
    assert [pack.pack_id for pack in dataset[last - 1 :]] == [last - 1, last]
    pack = dataset[0]
    assert len(pack) == len(pack.sample_ids)
    assert len(repr(pack)) < 100
    for bad in (-len(dataset) - 1, len(dataset), 10**12):
        with pytest.raises(IndexError):
            dataset[bad]
    assert len(list(dataset)) == len(dataset)  # the sequence protocol ends at IndexError


def test_text_samples_beside_mrope_get_equal_rows(tmp_path: Path) -> None:
    class Mixed(SyntheticEncode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            result = super().__call__(record)
            if "pixel_values" not in result:
                result["position_ids"] = torch.arange(len(result["input_ids"]))
                del result["mm_token_type_ids"]
            return result

    index = make_index(tmp_path, {"all": [TEXTS[0], IMAGES[0]]}, capacity=64)
    encoders = Mixed(), SyntheticEncode()
    mixed, uniform = (PackedDataset(index, encode)[0].joined() for encode in encoders)
    for key in ("position_ids", "mm_token_type_ids"):
        assert torch.equal(mixed[key], uniform[key])


def changed(value: dict[str, Any]) -> Any:
    return lambda record: {**SyntheticEncode()(record), **value}


WRONG = [
    (lambda record: {"labels": [1]}, "but not input_ids"),
    (changed({"labels": torch.zeros(3)}), r"labels of shape \[3\]"),
    (changed({"position_ids": torch.zeros(2, 9)}), "position_ids of shape"),
    (lambda record: {"input_ids": [7] * length_of(record["parts"]), "note": "x"}, "note as str"),
    (changed({"scale": torch.tensor(1.0)}), "scalar for scale"),
    (changed({"cu_seqlens": torch.tensor([0, 5])}), "cu_seqlens, which is a pack's own"),
    (lambda record: {"input_ids": torch.rand(9)}, "input_ids of type torch.float32, not integers"),
]


@pytest.mark.parametrize(("encode", "message"), WRONG)
def test_what_encode_may_not_return(index: Index, encode: Any, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        PackedDataset(index, encode)[0]


def test_positions_that_would_break_isolation_are_refused(index: Index) -> None:
    def jumping(record: dict[str, Any]) -> dict[str, Any]:
        ids = SyntheticEncode()(record)["input_ids"]
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)) * 2}

    with pytest.raises(MismatchError, match="count up by one"):
        PackedDataset(index, jumping)[0]


class Stamped(SyntheticEncode):
    def fingerprint(self) -> str:
        return "f00d"


def test_fingerprints_must_agree(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": TEXTS}, fingerprint="beef", capacity=64)
    with pytest.raises(MismatchError, match=r"fingerprint f00d, not beef: use the same processor"):
        PackedDataset(index, Stamped())
    PackedDataset(index, SyntheticEncode())  # one without a fingerprint cannot be checked
    for name, planned in (("same", "f00d"), ("unknown", None)):
        (tmp_path / name).mkdir()
        index = make_index(tmp_path / name, {"all": TEXTS}, fingerprint=planned, capacity=64)
        PackedDataset(index, Stamped())


LONG = [record(7, [95]), record(8, [9]), record(9, [4, (2, 4), 60])]


@pytest.mark.parametrize("types", [True, False])
def test_split_pieces_make_the_sample_again(tmp_path: Path, types: bool) -> None:
    index = make_index(tmp_path, {"all": LONG}, capacity=40, on_long="split")
    encode = SyntheticEncode(types=types)
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for pack in every(PackedDataset(index, encode)):
        for at, sample in enumerate(index.pack(pack["pack_id"]).samples):
            start, stop = pack["cu_seqlens"][at : at + 2].tolist()
            assert pack["labels"][start] == -100
            assert (pack["labels"][start + 1 : stop] != -100).all()
            if sample.sample_id == 0:
                rows = pack["position_ids"][:, start:stop]
                found[sample.piece] = pack["input_ids"][start:stop], rows
    pieces = [found[number] for number in sorted(found)]
    assert [len(ids) for ids, _ in pieces] == [40, 40, 15]
    assert torch.equal(torch.cat([ids for ids, _ in pieces]), encode(LONG[0])["input_ids"])
    for ids, rows in pieces:
        assert torch.equal(rows, torch.arange(len(ids)).expand(len(rows), -1))
    assert index.dropped(["sample_id", "reason"]).to_pylist() == [
        {"sample_id": 2, "reason": "too_long"}
    ]
