"""The promise itself: lengths on disk are what the real transformers processors build."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.inspect.verify import verify_index
from packidx.torch import PackedDataset

NUM_COMPARED = 300
PER_SHARD = 600
FAMILIES = ("qwen2.5-vl", "qwen3-vl")


@pytest.fixture(scope="module")
def shards(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first records of each shard of the corpus; `make plan` counts all of it."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in corpus.glob("*.jsonl"):
        with shard.open() as lines:
            (folder / shard.name).write_text("".join(islice(lines, PER_SHARD)))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def counted(
    request: pytest.FixtureRequest,
    shards: Path,
    corpus: Path,
    whole_processors: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """(lengths table, the processor folder it was counted with)."""
    folder = whole_processors / request.param
    lengths = tmp_path_factory.mktemp(request.param) / "lengths"
    summary = estimate_lengths(shards.as_posix(), lengths, processor=folder, media_root=corpus)
    assert summary.num_samples == 5 * PER_SHARD
    assert summary.num_rejected == 0
    assert summary.methods == {"exact": summary.num_samples}
    return lengths, folder


def opened(path: Path) -> Image.Image:
    """As transformers' `load_image` opens a path; torchvision's own decoder may be missing."""
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def hugging_face_messages(record: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    """The corpus's records as a trainer would write them for transformers; none of our code."""
    if "conversations" in record:
        names = {"human": "user", "gpt": "assistant"}
        images = (
            record.get("images") or [record["image"]]
            if "image" in record or "images" in record
            else []
        )
        left = [opened(root / image) for image in images]
        messages = []
        for turn in record["conversations"]:
            content: list[dict[str, Any]] = []
            for number, text in enumerate(turn["value"].split("<image>")):
                if number:
                    content.append({"type": "image", "image": left.pop(0)})
                if text:
                    content.append({"type": "text", "text": text})
            messages.append({"role": names[turn["from"]], "content": content})
        assert not left
        return messages
    messages = []
    for turn in record.get("messages") or record["conversation"]:
        content = turn["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parts = [
            p if p["type"] == "text" else {"type": "image", "image": opened(root / p["image"])}
            for p in content
        ]
        messages.append({"role": turn["role"], "content": parts})
    return messages


def test_lengths_equal_the_real_processor(counted: tuple[Path, Path], corpus: Path) -> None:
    import torchvision_cpu  # noqa: F401
    from transformers import AutoProcessor

    lengths, folder = counted
    processor = AutoProcessor.from_pretrained(folder)
    shards = json.loads((lengths / "manifest.json").read_text())["shards"]
    files = sorted(lengths.glob("part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    chosen = random.Random(0).sample(rows, NUM_COMPARED)
    assert {row["source"] for row in chosen} == {shard["source"] for shard in shards}
    for row in chosen:
        with open(shards[row["shard"]]["uri"], "rb") as file:
            file.seek(row["offset"])
            record = json.loads(file.read(row["nbytes"]))
        assert record["id"] == row["key"]
        built = processor.apply_chat_template(
            hugging_face_messages(record, corpus),
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        assert row["length"] == built["input_ids"].shape[1], row["key"]
        pixels = built["pixel_values"].shape[0] if "pixel_values" in built else 0
        assert row["vision_patches"] == pixels, row["key"]
        grids = built["image_grid_thw"].tolist() if pixels else []
        assert [[m["t"], m["h"], m["w"]] for m in row["media"]] == grids, row["key"]
        ids = built["input_ids"][0].tolist()
        for medium in row["media"]:
            span = ids[medium["at"] : medium["at"] + medium["tokens"]]
            assert set(span) == {processor.image_token_id}, row["key"]
        num_images = sum(token == processor.image_token_id for token in ids)
        assert row["image_tokens"] == num_images, row["key"]


def test_packs_materialise_as_planned(
    counted: tuple[Path, Path], whole_processors: Path, tmp_path: Path
) -> None:
    lengths, folder = counted
    plan_packs(lengths, tmp_path / "index", capacity=2048)
    index = open_index(tmp_path / "index")
    dataset = PackedDataset(index, ProcessorEncoder(folder))
    num_packs = len(dataset)
    for number in random.Random(1).sample(range(num_packs), 6):
        pack, plan = dataset[number].joined(), index.pack(number)
        stats = plan.stats
        assert pack["input_ids"].shape == pack["labels"].shape == (stats["length"],)
        assert pack["position_ids"].shape == (4, stats["length"])
        starts = [sample.start for sample in plan.samples]
        assert pack["cu_seqlens"].tolist() == [*starts, stats["length"]]
        assert pack["sample_ids"].tolist() == [sample.sample_id for sample in plan.samples]
        assert int((pack["labels"] != -100).sum()) == stats["label_tokens"]
        assert pack["position_ids"][0][starts].tolist() == [0] * len(starts)
        if stats["vision_patches"]:
            assert pack["pixel_values"].shape[0] == stats["vision_patches"]
            assert pack["image_grid_thw"].shape == (stats["num_images"], 3)
    checks = list(verify_index(index, encoder=ProcessorEncoder(folder), num_sampled=30))
    assert [check for check in checks if not check.ok] == []
    assert {"shards", "encoder", "samples"} <= {check.name for check in checks}
