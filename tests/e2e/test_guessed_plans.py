"""Plans on guesses, as trainers make them, read by a real processor: all trained, or named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset

CAPACITY = 2048
WORDS = "a plan of guesses holds more or fewer tokens than it says".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_folders(tmp_path_factory.mktemp("processors"), FEW_RANKS)["qwen3-vl"]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Talks whose texts have two to nine characters a token, some with an image of 20 to 1,200."""
    folder = tmp_path_factory.mktemp("data")
    for side in (90, 300, 700, 1100):
        Image.fromarray(np.full((side, side, 3), 60, np.uint8)).save(folder / f"{side}.png")
    rng = random.Random(3)
    lines = []
    for number in range(120):
        kind = rng.choice(["words", "digits", "images"])
        size = rng.randrange(5, 900)
        text = "7 1" * size if kind == "digits" else " ".join(rng.choices(WORDS, k=size))
        asked: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if kind == "images":
            asked.insert(0, {"type": "image", "image": f"{rng.choice([90, 300, 700, 1100])}.png"})
        said = [{"type": "text", "text": "So it does."}]
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        lines.append(json.dumps({"id": str(number), "messages": turns}))
    (folder / "talks.jsonl").write_text("\n".join(lines))
    return folder / "talks.jsonl"


def whole(encode: ProcessorEncoder, shard: Path, number: int) -> torch.Tensor:
    record = json.loads(shard.read_text().splitlines()[number])
    for part in record["messages"][0]["content"]:
        if part["type"] == "image":
            part["image"] = Image.open(shard.parent / part["image"])
    return torch.as_tensor(encode(record)["input_ids"]).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["chars", "heuristic"])
@pytest.mark.parametrize("options", [{}, {"margin": 0.0, "on_long": "truncate"}], ids=str)
def test_all_is_trained_that_the_packs_have_room_for(
    shard: Path, processor: Path, tmp_path: Path, how: str, options: dict[str, Any]
) -> None:
    ways: dict[str, dict[str, Any]] = {
        "chars": {},
        "heuristic": {"processor": processor, "method": "heuristic"},
    }
    summary = estimate_lengths(str(shard), tmp_path / "lengths", **ways[how])
    assert "exact" not in summary.methods
    plan_packs(tmp_path / "lengths", tmp_path / "i", capacity=CAPACITY, **options)
    index, encode = open_index(tmp_path / "i"), ProcessorEncoder(processor)
    dataset = PackedDataset(index, encode, on_mismatch="fit")
    held, named, total = set(), {}, 0
    for pack in (dataset[k] for k in range(len(dataset))):
        bounds = pack["cu_seqlens"].tolist()
        assert bounds[-1] == len(pack["input_ids"]) <= CAPACITY
        for at, number in enumerate(pack["sample_ids"].tolist()):
            ids = whole(encode, shard, number)
            if options.get("on_long") == "truncate" and len(ids) > CAPACITY:
                ids = ids[: bounds[at + 1] - bounds[at]]
            assert torch.equal(pack["input_ids"][bounds[at] : bounds[at + 1]], ids)
            held.add(number)
        for event in pack.get("events", []):
            length = len(whole(encode, shard, event["sample_id"]))
            if event["done"] == "truncated":
                assert event["found"] == length > CAPACITY
                continue
            truncates = options.get("on_long") == "truncate"
            assert event["found"] == (min(length, CAPACITY) if truncates else length)
            assert bounds[-1] + event["found"] > CAPACITY  # the pack has no room for it
            named[event["sample_id"]] = event["found"]
        total += bounds[-1]
    dropped = set(index.dropped()["sample_id"].to_pylist())
    assert sorted([*held, *named, *dropped]) == [*range(120)]
    assert dataset.events.left_out == (len(named), sum(named.values()))
    planned = {s.sample_id: s.length for k in range(len(dataset)) for s in index.pack(k).samples}
    assert sum(planned.values()) != total  # the lengths were guesses
