"""Samples in packs: padding, dummy images, ``on_mismatch="fit"``, and how tensors are joined."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from manifests import edit, fingerprinted, refresh
from plan_rules import broken_rules
from small_packs import length_of, make_index, media_spans, record, write_lengths
from torch_packs import IMAGE, SyntheticEncode, pack

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError, OptionError
from packidx.index import Index
from packidx.torch import Pack, PackedDataset, collate
from packidx.torch.joining import join_media
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


PARTS = [
    [[5 + 7 * n] for n in range(9)],
    [[3, (4, 4), 2 + n] for n in range(6)],
    [[70], [95], [1], [2, (8, 8), 90, (4, 4), 6]],
]
GUESSED = [record(n, parts) for n, parts in enumerate(itertools.chain(*PARTS))]


def guessed(folder: Path, records: list[dict[str, Any]], factor: float, **options: Any) -> Index:
    """A plan of lengths that are so many times the true ones, 1 at least, as guesses are stated."""
    folder.mkdir(exist_ok=True)
    lengths = write_lengths(folder, {"all": records})
    part = lengths / "part-00000.parquet"
    table = pq.read_table(part)
    false = [max(1, int(n * factor)) for n in table["length"].to_pylist()]
    unknown = [None] * len(false)
    changes = {"length": false, "method": ["heuristic"] * len(false)}
    changes |= {"media": unknown, "label_tokens": unknown, "audio_tokens": [0] * len(false)}
    for name, values in changes.items():
        field = table.schema.field(name)
        table = table.set_column(
            table.column_names.index(name), field, [pa.array(values, field.type)]
        )
    pq.write_table(table, part)
    methods = {"methods": {"heuristic": len(false)}}
    edit(lengths, lambda manifest: manifest.update(fingerprinted(manifest | methods)))
    refresh(lengths)
    plan_packs(lengths, folder / "index", **options)
    return open_index(folder / "index")


class Own(SyntheticEncode):
    """Says for itself how long a sample is."""

    def whole(self, sample_id: int, records: list[dict[str, Any]]) -> torch.Tensor:
        ids: torch.Tensor = self(records[sample_id])["input_ids"]
        return ids


def check_packs(
    dataset: PackedDataset, records: list[dict[str, Any]], capacity: int
) -> tuple[set[int], dict[int, dict[str, Any]]]:
    """Samples that were read, with ids equal to the encoder's, and those that are named as left
    out; no pack is above its capacity, and each takes what there is room for, in order."""
    options, encode = dataset.index.snapshot.options, Own()
    align = options.align
    room = (capacity - options.reserve) // options.pad_pack_to * options.pad_pack_to
    held: set[int] = set()
    told: dict[int, dict[str, Any]] = {}
    for each in dataset:
        pack = each.joined()
        bounds, lengths = pack["cu_seqlens"].tolist(), pack["lengths"].tolist()
        assert bounds[-1] == len(pack["input_ids"]) == len(pack["labels"]) <= capacity
        assert bounds[-1] % options.pad_pack_to == 0
        assert pack["max_seqlen"] == max(b - a for a, b in itertools.pairwise(bounds))
        ids = pack["sample_ids"].tolist()
        planned = [sample.sample_id for sample in dataset.index.pack(pack["pack_id"]).samples]
        assert ids == [number for number in planned if number in ids]  # in order of position
        for number, start, length in zip(ids, bounds, lengths, strict=False):
            whole = encode.whole(number, records)
            assert torch.equal(pack["input_ids"][start : start + length], whole)
            assert pack["position_ids"][0, start : start + length].tolist() == [*range(length)]
            held.add(number)
        slots = dict(zip(ids, (b - a for a, b in itertools.pairwise(bounds)), strict=False))
        for event in each.events:
            assert (event["kind"], event["done"]) == ("no_room", "left_out")
            found = length_of(records[event["sample_id"]]["parts"])
            assert event["found"] == found
            # No room beside those before it, of which none was left out later.
            before = planned.index(event["sample_id"])
            ahead = [number for number in ids if planned.index(number) < before]
            assert sum(slots[number] for number in ahead) + -(-found // align) * align > room
            told[event["sample_id"]] = event
    return held, told


RULES: list[dict[str, Any]] = [
    {},
    {"align": 8},
    {"pad_pack_to": 32},
    {"margin": 0.25},
    {"reserve": 48, "align": 4, "pad_pack_to": 16},
]


@pytest.mark.parametrize("factor", [0.1, 0.4, 0.9, 1, 1.7])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_every_sample_is_in_its_pack_or_named(
    tmp_path: Path, factor: float, rules: dict[str, Any]
) -> None:
    index = guessed(tmp_path, GUESSED, factor, capacity=128, **rules)
    dataset = PackedDataset(index, Own(), on_mismatch="fit")
    held, told = check_packs(dataset, GUESSED, 128)
    dropped = set(index.dropped()["sample_id"].to_pylist())
    assert held | told.keys() | dropped == {*range(len(GUESSED))}
    assert not held & told.keys() and not (held | told.keys()) & dropped
    lost = dataset.events.left_out
    assert (lost.samples, lost.tokens) == (len(told), sum(e["found"] for e in told.values()))
    if factor >= 1:  # every pack has room for all that it was planned to have
        assert not told
    if factor == 0.1:
        assert told


def test_a_pack_of_which_nothing_is_left_is_pad_tokens(tmp_path: Path) -> None:
    records = [record(0, [300]), record(1, [20])]
    rules: dict[str, Any] = {"margin": 0, "max_samples": 1, "pad_pack_to": 16}
    index = guessed(tmp_path, records, 0.2, capacity=64, **rules)
    dataset = PackedDataset(index, Own(), on_mismatch="fit")
    packs = list(dataset)
    (empty,) = [pack for pack in packs if not len(pack.samples)]
    joined = empty.joined()
    assert empty.sample_ids.dtype == torch.int64
    assert len(joined["input_ids"]) == 16 and joined["labels"].eq(-100).all()
    assert empty.events[0]["found"] == 300
    for attention in ("sdpa", "flash", "thd", "indexed"):
        assert collate([empty], attention)["input_ids"].shape == (1, 16)
        assert collate(packs, attention)["labels"].ne(-100).sum() == 19


@pytest.mark.parametrize("on_long", ["split", "truncate"])
def test_plans_that_cut_guesses_are_refused(tmp_path: Path, on_long: str) -> None:
    records = [record(0, [150]), record(1, [9])]
    index = guessed(tmp_path, records, 0.9, capacity=60, on_long=on_long)
    with pytest.raises(OptionError, match="plan with --on-long drop"):
        PackedDataset(index, Own(), on_mismatch="fit")
    whole = guessed(tmp_path / "whole", records[1:], 0.9, capacity=60, on_long=on_long)
    assert len(PackedDataset(whole, Own(), on_mismatch="fit")[0].samples) == 1


class Adding(SyntheticEncode):
    """Adds tensors of its own to each sample with images.

    Args:
        make: (number of patches, number of tokens) → the tensors.
    """

    def __init__(self, make: Any, join: Any = None) -> None:
        super().__init__()
        self.make = make
        if join is not None:
            self.join = join

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        sample = super().__call__(record)
        if "pixel_values" in sample:
            sample |= self.make(len(sample["pixel_values"]), len(sample["input_ids"]))
        return sample


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"text": TEXTS, "image": IMAGES}, capacity=64)


# -- rules that are known by name ------------------------------------------------------------------


def test_indices_of_patches_go_on_through_samples_and_packs() -> None:
    """Molmo 2: of the patches of all crops; -1 is none."""

    def sample(crops: int, patches: int, index: list[list[int]]) -> dict[str, torch.Tensor]:
        pooling = torch.tensor(index, dtype=torch.int32)
        return {"pixel_values": torch.rand(crops, patches, 3), "image_token_pooling": pooling}

    parts = [sample(2, 5, [[0, 9]]), sample(1, 5, [[0, -1], [4, 3]]), sample(3, 5, [[14, 0]])]
    joined = join_media(parts)["image_token_pooling"]
    assert joined.tolist() == [[0, 9], [10, -1], [14, 13], [29, 15]]
    assert joined.dtype == torch.int32
    in_packs = join_media([join_media(parts[:1]), join_media(parts[1:])])
    assert in_packs["image_token_pooling"].tolist() == joined.tolist()
    pooled = [part["pixel_values"].flatten(0, 1)[part["image_token_pooling"][-1]] for part in parts]
    whole = join_media(parts)["pixel_values"].flatten(0, 1)
    for row, values in zip((0, 2, 3), pooled, strict=True):
        assert torch.equal(whole[joined[row]], values)


def test_an_index_without_what_it_counts_is_refused() -> None:
    with pytest.raises(MismatchError, match="rows of pixel_values, without pixel_values"):
        join_media([{"image_token_pooling": torch.tensor([[0]])}])


def test_patches_side_by_side_are_joined_side_by_side() -> None:
    """MiniCPM-V reads the first row of them alone."""
    parts = [
        {"pixel_values": torch.rand(1, 3, 14, 14 * n), "target_sizes": torch.tensor([[1, n]])}
        for n in (4, 6)
    ]
    joined = join_media(parts)
    assert joined["pixel_values"].shape == (1, 3, 14, 140)
    assert torch.equal(joined["pixel_values"][..., 56:], parts[1]["pixel_values"])
    assert joined["target_sizes"].tolist() == [[1, 4], [1, 6]]
    parts[1]["pixel_values"] = torch.rand(1, 3, 16, 28)
    with pytest.raises(MismatchError, match="pixel_values with different shapes"):
        join_media(parts)


def test_a_model_that_takes_lists_gets_lists() -> None:
    """UnlimitedOCR splits its tiles by them."""

    def tiled(tiles: list[int]) -> Pack:
        grids = torch.tensor([[1, n] for n in tiles])
        return pack([4], num_local_patches=torch.tensor(tiles), patches_grid=grids)

    batch = collate([tiled([2, 3]), tiled([4])])
    assert batch["num_local_patches"] == [2, 3, 4]
    assert batch["patches_grid"] == [[1, 2], [1, 3], [1, 4]]
    alone = tiled([2])
    del alone.samples[0]["patches_grid"]
    assert torch.equal(collate(alone)["num_local_patches"], torch.tensor([2]))


# -- names that nobody knows -----------------------------------------------------------------------


def numbers(patches: int, tokens: int) -> dict[str, Any]:
    return {"first_patches": torch.tensor([0, patches - 1, -1])}


def test_unknown_whole_numbers_are_refused_by_name(index: Index) -> None:
    dataset = PackedDataset(index, Adding(numbers))
    with pytest.raises(MismatchError, match=r"first_patches \[3\].*join = \{'first_patches': RULE"):
        [dataset[k] for k in range(len(dataset))]
    read = PackedDataset(index, SyntheticEncode())[0]
    read.samples[0]["own"] = torch.tensor([1])
    with pytest.raises(MismatchError, match="encode returned own"):
        collate([read])


def test_the_encoder_says_how_its_own_are_joined(index: Index) -> None:
    def make(patches: int, tokens: int) -> dict[str, Any]:
        return {
            **numbers(patches, tokens),
            "areas": torch.full((1, patches), patches),
            "scores": torch.full((2,), patches),
            "kinds": torch.full((tokens,), 3),
        }

    rules = {"areas": "last", "scores": "rows", "kinds": "tokens"}
    rules["first_patches"] = "index:pixel_values"
    dataset = PackedDataset(index, Adding(make, rules))
    packs = list(dataset)
    batch = collate(packs)
    patches = len(batch["pixel_values"])
    assert batch["areas"].shape == (1, patches)
    ends = batch["first_patches"].view(-1, 3)
    assert ends[:, 2].eq(-1).all() and len(ends) == len(IMAGES) > 2
    assert ends[1:, 0].tolist() == (ends[:-1, 1] + 1).tolist() and int(ends[-1, 1]) == patches - 1
    assert len(batch["scores"]) == 2 * len(IMAGES)
    assert batch["kinds"].shape == batch["input_ids"].shape
    for row, each in enumerate(packs):
        kinds = each.joined()["kinds"]
        assert torch.equal(batch["kinds"][row, : len(kinds)], kinds)
    # What has none is filled with 0: text samples, and what pads a row.
    assert set(batch["kinds"].unique().tolist()) == {0, 3}
