"""Preference pairs as units, from records to batches, with a real processor and images."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from data_layouts import png
from packidx_cli.main import main
from plan_rules import broken_rules

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import OptionError
from packidx.export.wds import export_wds
from packidx.torch import PackedDataset, collate
from packidx.torch.joining import IGNORE

Record = dict[str, Any]


def pair(number: int, image: bool) -> Record:
    good, bad = f"It is {number}. " * (1 + number % 4), "No 漢字. " * (1 + number % 5)
    asked: list[Record] = [{"type": "text", "text": f"What is {number}?"}]
    record = {"images": [f"{number % 3}.png"]} if image else {}
    if image:
        asked.insert(0, {"type": "image"})
    turns = [{"role": "user", "content": asked}]
    sides = {"chosen": good, "rejected": bad}
    answers = {s: [{"role": "assistant", "content": text}] for s, text in sides.items()}
    return {"id": f"p{number}", "prompt": turns, **answers, **record}


def side_of(record: Record, side: str) -> Record:
    """The conversation of one side, written by hand."""
    kept = {name: record[name] for name in ("images",) if name in record}
    return {**kept, "messages": [*record["prompt"], *record[side]]}


def write(folder: Path, records: Sequence[Record], name: str = "pairs.jsonl") -> str:
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number))
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.fixture(scope="module")
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


@pytest.fixture(scope="module")
def encoder(processor: str) -> ProcessorEncoder:
    return ProcessorEncoder(processor)


def rows_of(lengths: Path) -> list[Record]:
    parts = [pq.read_table(path) for path in sorted(lengths.glob("part-*.parquet"))]
    return [row for part in parts for row in part.to_pylist()]


def test_packs_hold_both_sides_as_the_encoder_makes_them(
    tmp_path: Path, processor: str, encoder: ProcessorEncoder
) -> None:
    records = [pair(number, image=number % 2 == 0) for number in range(9)]
    source = write(tmp_path, records)
    chat = side_of(pair(99, image=True), "chosen")
    other = write(tmp_path, [chat, chat], "chats.jsonl")
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    mix = tmp_path / "mix.json"
    entries = {"pairs": {"file_name": source, "pair": "both"}, "chats": {"file_name": other}}
    mix.write_text(json.dumps(entries))
    command = ["estimate", str(mix), "--processor", processor, "-o", str(lengths), "--quiet"]
    assert main(command) == 0
    rows = rows_of(lengths)
    assert [row["pair"] for row in rows] == ["chosen", "rejected"] * 9 + [None] * 2
    assert [row["sample_id"] for row in rows] == list(range(20))
    assert [row["row"] for row in rows[:6]] == [0, 0, 1, 1, 2, 2]
    assert [row["key"] for row in rows[:4]] == ["p0", "p0", "p1", "p1"]
    assert {row["method"] for row in rows} == {"exact"}
    assert main(["plan", str(lengths), "-o", str(index), "--capacity", "700", "--quiet"]) == 0
    snapshot = open_index(index)
    assert broken_rules(snapshot) == []
    assert snapshot.samples(["pair"])["pair"].to_pylist().count("chosen") == 9
    dataset = PackedDataset(index, encoder)
    packs = list(dataset)
    assert len(packs) > 1
    seen, tokenizer = set(), encoder.files.tokenizer
    assert tokenizer is not None
    for number, pack in enumerate(each.joined() for each in packs):
        planned = snapshot.pack(number).samples
        bounds, last = pack["cu_seqlens"].tolist(), None
        for at, sample in enumerate(planned):
            ids = pack["input_ids"][bounds[at] : bounds[at + 1]]
            labels = pack["labels"][bounds[at] : bounds[at + 1]]
            record: Record = chat
            if sample.pair is not None:
                record = side_of(records[sample.sample_id // 2], sample.pair)
                seen.add((sample.sample_id // 2, sample.pair))
            expected = encoder(opened(record, tmp_path))
            assert torch.equal(ids, torch.as_tensor(expected["input_ids"]).flatten())
            assert torch.equal(labels, torch.as_tensor(expected["labels"]).flatten())
            trained = ids[labels != IGNORE].tolist()
            text = tokenizer.decode(trained, skip_special_tokens=False)
            assert text == record["messages"][-1]["content"] + "<|im_end|>"
            pair_id = pack["pair_ids"][at].item() if "pair_ids" in pack else -1
            assert (pair_id < 0) == (sample.pair is None)
            if sample.pair == "rejected":
                assert last == (pair_id, "chosen", sample.sample_id - 1)
            last = (pair_id, sample.pair, sample.sample_id)
    assert seen == {(number, side) for number in range(9) for side in ("chosen", "rejected")}
    batch = collate(packs)
    ids = batch["pair_ids"].tolist()
    assert sorted(ids) == sorted([*range(9), *range(9), -1, -1])
    assert [n for n in ids if n >= 0][::2] == list(range(9))
    packs[0].pair_ids = None
    assert "pair_ids" not in collate(packs[:1])


def opened(record: Record, folder: Path) -> Record:
    from PIL import Image

    images = [Image.open(folder / name) for name in record.get("images", [])]
    return {**record, "images": images} if images else record


def test_if_one_side_is_rejected_the_other_is_too(tmp_path: Path) -> None:
    bad = {**pair(1, False), "rejected": [{"role": "narrator", "content": "No."}]}
    content = [{"type": "image", "image": "no.png"}]
    lost = {**pair(2, False), "chosen": [{"role": "assistant", "content": content}]}
    source = write(tmp_path, [pair(0, True), bad, {"messages": []}, lost, pair(3, False)])
    with open(source, "a") as file:
        file.write("{cut\n")
    told = estimate_lengths([source], tmp_path / "lengths", pair="both", workers=1)
    rows = rows_of(tmp_path / "lengths")
    reasons = [row["reason"] for row in rows]
    assert reasons[:6] == [None, None, "other_side", "unknown_role", "no_pair", "no_pair"]
    assert reasons[7] == "other_side"
    assert reasons[6] not in (None, "other_side")
    assert reasons[8:] == [None, None, "bad_json", "bad_json"]
    assert rows[2]["detail"].startswith("the rejected side: unknown_role: ")
    assert (told.num_samples, told.num_rejected) == (12, 8)
    assert [row["length"] > 0 for row in rows] == [reason is None for reason in reasons]


def test_counting_again_takes_both_sides_over(tmp_path: Path, processor: str) -> None:
    first = [pair(number, False) for number in range(40)]
    sources = [write(tmp_path, first, "a.jsonl"), write(tmp_path, first[:7], "b.jsonl")]
    options: dict[str, Any] = {"processor": processor, "pair": "both", "workers": 1}
    estimate_lengths(sources, tmp_path / "lengths", **options)
    write(tmp_path, [*first[:7], pair(50, True)], "b.jsonl")
    again = estimate_lengths(sources, tmp_path / "lengths", **options)
    assert again.taken_over is not None
    assert (again.taken_over.num_samples, again.taken_over.num_counted) == (80, 16)
    whole = estimate_lengths(sources, tmp_path / "whole", **options)
    assert whole.fingerprint == again.fingerprint
    for name in ("lengths", "whole"):
        files = [path.read_bytes() for path in sorted((tmp_path / name).glob("part-*.parquet"))]
        assert files == [path.read_bytes() for path in sorted((tmp_path / "whole").glob("part-*"))]
    manifest = json.loads((tmp_path / "lengths" / "manifest.json").read_text())
    assert [shard["rows"] for shard in manifest["shards"]] == [80, 16]
    same = estimate_lengths(sources, tmp_path / "lengths", **options)
    assert same.existed


class Words:
    """An encoder of anybody's, and a transform: a token for each word of the last turn."""

    @staticmethod
    def encode(record: Record) -> dict[str, list[int]]:
        return {"input_ids": [7] * len(record["messages"][-1]["content"].split())}

    @staticmethod
    def transform(record: Record, rng: random.Random) -> Record:
        (said,) = record["rejected"]
        said["content"] += " end"  # both sides get the record, each one of its own
        (said,) = record["chosen"]
        said["content"] += " end"
        return record


def test_an_encoder_of_ones_own_gets_one_side(tmp_path: Path) -> None:
    records = [pair(number, False) for number in range(5)]
    source = write(tmp_path, records)
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    options: dict[str, Any] = {"encode": Words.encode, "transform": Words.transform}
    estimate_lengths([source], lengths, pair="both", workers=1, **options)
    expected = [
        len(record[side][0]["content"].split()) + 1
        for record in records
        for side in ("chosen", "rejected")
    ]
    assert [row["length"] for row in rows_of(lengths)] == expected
    plan_packs(str(lengths), index, capacity=40)
    dataset = PackedDataset(index, Words.encode, transform=Words.transform)
    for number in range(len(dataset)):
        pack = dataset[number].joined()
        sizes = pack["cu_seqlens"].diff().tolist()[: len(pack["sample_ids"])]
        assert sizes == [expected[sample] for sample in pack["sample_ids"]]


def test_what_is_left_of_a_pair_is_no_pair(
    tmp_path: Path, processor: str, encoder: ProcessorEncoder
) -> None:
    records = [pair(number, False) for number in range(3)]
    source = write(tmp_path, records)
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    estimate_lengths([source], lengths, pair="both", workers=1, processor=processor)
    plan_packs(str(lengths), index, capacity=4000)
    text = Path(source).read_text()
    Path(source).write_text(text.replace("It is 1. It is 1.", "It is 1. \\u0000 x"))
    dataset = PackedDataset(index, encoder, on_bad="skip", on_mismatch="skip")
    with pytest.warns(UserWarning, match="shard"):
        pack = dataset[0].joined()
    by_sample = dict(zip(pack["sample_ids"].tolist(), pack["pair_ids"].tolist(), strict=True))
    assert [by_sample.get(side) for side in (2, 3)].count(-1) == 1 and len(by_sample) == 5
    assert by_sample[0] == by_sample[1] != by_sample[4] == by_sample[5]


def test_what_does_not_know_pairs_refuses_them(
    tmp_path: Path, processor: str, encoder: ProcessorEncoder
) -> None:
    source = write(tmp_path, [pair(number, False) for number in range(3)])
    lengths, index = str(tmp_path / "lengths"), tmp_path / "index"
    estimate_lengths([source], lengths, pair="both", workers=1, processor=processor)
    plan_packs(lengths, index, capacity=1000)
    with pytest.raises(OptionError, match="has preference pairs, of whose sides"):
        export_wds(index, tmp_path / "wds")
    with pytest.raises(OptionError, match="may leave one side of a preference pair out"):
        PackedDataset(index, encoder, on_mismatch="fit")
