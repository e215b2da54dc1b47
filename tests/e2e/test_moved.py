"""Data that has changed place or content between counting, planning and reading."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packidx import estimate_lengths, plan_packs
from packidx.errors import BadRecord
from packidx.torch import PackedDataset


def record(image: str, **extra: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "that"}]
    return {"messages": turns, "images": [image], **extra}


def write(path: Path, *records: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(path)


def make_image(path: Path, width: int = 30, height: int = 20) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return str(path)


def encode(opened: Mapping[str, Any]) -> dict[str, Any]:
    """500 tokens an image and a third of the characters, as an estimate without a processor."""
    assert all(image.size == (30, 20) for image in opened["images"])
    characters = len("what?") + len("that")
    return {"input_ids": list(range(500 * len(opened["images"]) + characters // 3))}


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_roots_lead_to_absolute_media_too(tmp_path: Path, confined: bool, scheme: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new place"
    image = make_image(old / "img" / "a b.png")
    reference = scheme + (image.replace(" ", "%20") if scheme else image)
    shard = write(old / "data.jsonl", record(reference))
    root = str(old) if confined else None
    summary = estimate_lengths(shard, tmp_path / "l", media_root=root, workers=1)
    assert summary.num_rejected == 0
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=1000)
    shutil.move(old, new)
    dataset = PackedDataset(tmp_path / "i", encode, roots={str(old): str(new)})
    assert len(dataset[0].joined()["input_ids"]) == 503
    with pytest.raises(Exception, match=str(old)):
        PackedDataset(tmp_path / "i", encode)[0]


def test_a_dot_places_all_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_image(tmp_path / "data" / "img" / "a.png")
    write(tmp_path / "data" / "d.jsonl", record("img/a.png"))
    monkeypatch.chdir(tmp_path / "data")
    estimate_lengths("d.jsonl", tmp_path / "l", workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=1000)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="say where it is now"):
        PackedDataset(tmp_path / "i", encode)[0]
    dataset = PackedDataset(tmp_path / "i", encode, roots={".": str(tmp_path / "data")})
    assert len(dataset[0].joined()["input_ids"]) == 503


def test_an_image_that_is_gone_is_named(tmp_path: Path) -> None:
    image = Path(make_image(tmp_path / "a.png"))
    shard = write(tmp_path / "data.jsonl", record("a.png"))
    estimate_lengths(shard, tmp_path / "l", workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=1000)
    image.unlink()
    with pytest.raises(BadRecord, match="a.png") as caught:
        PackedDataset(tmp_path / "i", encode)[0]
    assert "data.jsonl#0" in "".join(caught.value.__notes__)
