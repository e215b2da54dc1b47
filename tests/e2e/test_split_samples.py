"""Long samples, from estimate to loss: texts in pieces, media whole, label tokens as planned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from family_processors import family_processor
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.index import Index
from packidx.inspect.verify import verify_index
from packidx.torch import PackedDataset, PackSampler

WORDS = "the of and a pack holds tokens that were counted before they are read".split()  # noqa: SIM905
CAPACITY = 1300


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tmp = tmp_path_factory.mktemp("processors")
    made = qwen_folders(tmp, FEW_RANKS)
    return {name: made[name] for name in ("qwen2.5-vl", "qwen3-vl")} | {
        "glm46v": family_processor("glm46v", tmp)[1]
    }


def talk(rng: random.Random, number: int, turns: int, images: int) -> dict[str, Any]:
    """A conversation with images anywhere in the user's turns."""
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        asked: list[dict[str, Any]] = [
            {"type": "text", "text": " ".join(rng.choices(WORDS, k=rng.randrange(2, 90)))}
        ]
        for _ in range(images):
            asked.insert(rng.randrange(len(asked) + 1), {"type": "image", "image": image(rng)})
        said = " ".join(rng.choices(WORDS, k=rng.randrange(1, 120)))
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
        if turn % 4 == 1:
            messages[-1]["train"] = False
    return {"id": f"talk-{number}", "messages": messages}


def image(rng: random.Random) -> str:
    return f"{rng.choice([60, 150, 420])}x{rng.choice([60, 230, 440])}.png"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    for width in (60, 150, 420, 2000):
        for height in (60, 230, 440, 1600):
            Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(
                folder / f"{width}x{height}.png"
            )
    rng = random.Random(5)
    records = [talk(rng, n, rng.randrange(1, 30), n % 4) for n in range(24)]
    huge = talk(rng, 24, 12, 0)  # an image that no pack holds, between texts that packs do
    huge["messages"][6]["content"].insert(0, {"type": "image", "image": "2000x1600.png"})
    begun = talk(rng, 25, 30, 0)  # an image that all of the rest lies behind
    begun["messages"][0]["content"].insert(0, {"type": "image", "image": "150x60.png"})
    records += [huge, begun]
    records.append({"input_ids": [*range(40)] * 70, "labels": ([-100] * 30 + [7] * 40) * 40})
    text = "\n".join(map(json.dumps, records))
    (folder / "talks.jsonl").write_text(text + "\n")
    return folder


def counted(data: Path, processor: Path, folder: Path, **options: Any) -> Path:
    shard = str(data / "talks.jsonl")
    summary = estimate_lengths(shard, folder / "lengths", processor=processor, **options)
    assert (summary.num_rejected, summary.methods) == (0, {"exact": 27})
    return folder / "lengths"


def read_all(index: Index, encode: Any) -> dict[tuple[int, int], tuple[Any, Any]]:
    """Every piece as its pack has it; label tokens, of packs too, are compared with the plan's."""
    dataset, found = PackedDataset(index, encode), {}
    for pack in (each.joined() for each in dataset):
        planned = index.pack(pack["pack_id"])
        for sample, start in zip(planned.samples, pack["cu_seqlens"].tolist(), strict=False):
            labels = pack["labels"][start : start + sample.length]
            assert sample.label_tokens == int((labels != -100).sum())
            tokens = pack["input_ids"][start : start + sample.length], labels
            found[sample.sample_id, sample.token_start] = tokens
        assert planned.stats["label_tokens"] == int((pack["labels"] != -100).sum())
        if "image_grid_thw" in pack:
            grids = pack["image_grid_thw"]
            assert planned.stats["num_images"] == len(grids)
            assert planned.stats["vision_patches"] == int(grids.prod(1).sum())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("on_long", ["split", "truncate"])
@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "glm46v"])
def test_what_is_read_is_what_was_planned(
    folders: dict[str, Path], data: Path, tmp_path: Path, name: str, on_long: str
) -> None:
    lengths = counted(data, folders[name], tmp_path)
    plan_packs(lengths, tmp_path / "i", capacity=CAPACITY, on_long=on_long)
    index, encode = open_index(tmp_path / "i"), ProcessorEncoder(folders[name])
    checks = list(verify_index(index, encoder=encode, num_sampled=40))
    assert [check for check in checks if not check.ok] == []
    found = read_all(index, encode)
    dropped = {row["sample_id"]: row["reason"] for row in index.dropped().to_pylist()}
    rows = pq.read_table(next(lengths.glob("part-00000*"))).to_pylist()
    lost = cut_media = 0
    for row in rows:
        own = sorted(start for number, start in found if number == row["sample_id"])
        held = {start: found[row["sample_id"], start][0] for start in own}
        whole = ids_of(data, row, encode)
        lost += len(whole) - sum(map(len, held.values()))
        for start, ids in held.items():
            assert torch.equal(ids, whole[start : start + len(ids)])
        if len(whole) <= CAPACITY:
            assert [*held] == [0] and len(held[0]) == len(whole)
            continue
        assert on_long == "split" or [*held] in ([], [0])
        end = max((medium["at"] + medium["tokens"] for medium in row["media"]), default=0)
        if row["media"] and (on_long == "split" or end > CAPACITY):
            assert dropped[row["sample_id"]] == "too_long"
        cut_media += bool(row["media"] and held)
    assert bool(cut_media) == (
        on_long == "truncate"
    )  # the talk that begins with an image, at least
    result = index.snapshot.result
    assert result.num_tokens_lost == lost > CAPACITY
    assert result.num_pieces > result.num_samples or on_long == "truncate"
    dataset, sampler = PackedDataset(index, encode), PackSampler(index, global_batch=4)
    for number in sampler.packs_of_step(1):
        labels = [int((one["labels"] != -100).sum()) for one in dataset[number].samples]
        assert labels == [sample.label_tokens for sample in index.pack(number).samples]


def ids_of(data: Path, row: dict[str, Any], encode: Any) -> torch.Tensor:
    """All tokens of a row's record."""
    record = json.loads((data / "talks.jsonl").read_text().splitlines()[row["row"]])
    for message in record.get("messages", ()):
        for part in message["content"]:
            if part["type"] == "image":
                part["image"] = Image.open(data / part["image"]).convert("RGB")
    return torch.as_tensor(encode(record)["input_ids"]).flatten()
