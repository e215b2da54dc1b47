"""Processors of no family of ours: transformers' own class counts their images."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from transformers import AyaVisionProcessor, GotOcr2ImageProcessor

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.generic import GenericVision, load_generic
from packidx.encode.loading import files_of
from packidx.errors import OptionError, SourceError
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import HEURISTIC
from packidx.processor.families import FAMILIES
from packidx.processor.folder import load_processor
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|END|>{% endfor %}"
)
TOKENS = [
    "<image>",
    "<|IMG_PATCH|>",
    "<|START_OF_IMG|>",
    "<|END_OF_IMG|>",
    "TILE_GLOBAL",
    "<|END|>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Aya Vision (CohereLabs/aya-vision-8b), tiles of 56 pixels."""
    tmp = tmp_path_factory.mktemp("generic")
    processor = AyaVisionProcessor(
        GotOcr2ImageProcessor(
            size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=12
        ),
        tiles.tokenizer(tmp, TOKENS + [f"TILE_{number}" for number in range(1, 13)]),
        patch_size=14,
        img_size=56,
        downsample_factor=2,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(tmp / "aya")
    return tmp / "aya"


def test_lengths_are_the_processors(folder: Path) -> None:
    assert "AyaVisionProcessor" not in FAMILIES
    files = load_processor(folder)
    vision: Any = files.vision
    assert isinstance(vision, GenericVision) and files.family is None
    rng = random.Random(1)
    several = set()
    for number in range(300):
        messages = tiles.conversation(rng, ["image"] * [0, 1, 1, 2, 3][number % 5])
        outputs = vision.processor.apply_chat_template(messages, tokenize=True, return_dict=True)
        ids, images, _ = tiles.counted(files, messages)
        assert len(ids) == len(tiles.real_ids(outputs))
        assert (images.patches == -1).all()  # not known
        several.update(images.tokens.tolist())
    assert len(several) > 5


def test_each_size_is_asked_once(folder: Path) -> None:
    vision = load_generic(str(folder))
    asked: list[Any] = []
    real = vision.processor._get_num_multimodal_tokens

    def counting(image_sizes: list[tuple[int, int]]) -> Any:
        asked.extend(image_sizes)
        return real(image_sizes=image_sizes)

    vision.processor._get_num_multimodal_tokens = counting
    sizes = [(50, 60), (50, 130), (50, 60), (60, 50), (0, 9)]
    first = vision.count_images(sizes)
    again = vision.count_images(np.array(sizes))
    assert sorted(asked) == [(50, 60), (50, 130), (60, 50)]
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.tokens[0] == first.tokens[2] != first.tokens[1]
    assert first.tokens[4] == 0 and first.errors[4].reason == "broken_media"
    assert first.expansions is not None and first.expansions[4] is None
    assert vision.count_images([]).tokens.shape == (0,)


def test_what_the_processor_refuses(folder: Path) -> None:
    vision = load_generic(str(folder))

    def refusing(image_sizes: list[tuple[int, int]]) -> Any:
        if image_sizes == [(1, 1)]:
            raise ZeroDivisionError("nothing left")
        return {"num_image_tokens": [0]}

    vision.processor._get_num_multimodal_tokens = refusing
    counts = vision.count_images([(1, 1), (2, 2)])
    assert [counts.errors[number].reason for number in (0, 1)] == ["media_not_counted"] * 2
    assert "ZeroDivisionError: nothing left" in counts.errors[0].detail
    assert "AyaVisionProcessor._get_num_multimodal_tokens" in counts.errors[1].detail
    refused = vision.count_videos([MediaInfo(9, 9, 9), MediaInfo(9, 9, 9)])
    assert [refused.errors[number].reason for number in (0, 1)] == ["unsupported_media"] * 2


def test_another_process_loads_it_again(folder: Path) -> None:
    vision = load_generic(str(folder))
    data = pickle.dumps(vision)
    assert len(data) < 1000
    copy = pickle.loads(data)
    assert copy.count_images([(50, 60)]).tokens == vision.count_images([(50, 60)]).tokens
    assert copy.settings == vision.settings
    vision.processor.image_processor.max_patches = 3
    assert copy.settings != vision.settings


def test_processors_that_do_not_serve(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="transformers cannot load it"):
        load_generic(str(tmp_path))
    processor = load_generic(str(folder)).processor
    processor.image_token = None
    with pytest.raises(SourceError, match="image_token"):
        GenericVision(processor)
    processor.image_token, processor.image_token_id = "<unheard>", None
    with pytest.raises(SourceError, match="<unheard>"):
        GenericVision(processor)
    with pytest.raises(SourceError, match="_get_num_multimodal_tokens"):
        GenericVision(processor.image_processor)


def test_rows_say_who_counted(folder: Path, tmp_path: Path) -> None:
    """Through `estimate`: such rows are `precomputed`, compared as they are, and a folder and its
    object are one."""
    tiles.Image.new("RGB", (90, 50)).save(tmp_path / "a.png")
    with_image = {"messages": [{"role": "user", "content": "<image>?"}], "images": ["a.png"]}
    without = {"messages": [{"role": "user", "content": "no image"}]}
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, (with_image, without))))
    estimate_lengths(str(tmp_path / "a.jsonl"), tmp_path / "lengths", processor=folder, workers=1)
    rows = pq.read_table(tmp_path / "lengths" / "part-00000.parquet").to_pylist()
    assert [row["method"] for row in rows] == ["precomputed", "exact"]
    who = "media counted by AyaVisionProcessor._get_num_multimodal_tokens"
    assert [row["detail"] for row in rows] == [who, None]
    assert rows[0]["length"] > rows[0]["image_tokens"] > 4 and rows[0]["vision_patches"] is None

    real = load_generic(str(folder)).processor
    assert files_of(real).fingerprint() == load_processor(folder).fingerprint()
    with pytest.raises(OptionError, match="of no family packidx knows"):
        ProcessorEncoder(real)


def test_media_that_nobody_counts(folder: Path, tmp_path: Path) -> None:
    """A folder that transformers cannot load: texts are counted, records with images are not."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = json.loads((broken / "processor_config.json").read_text())
    config["processor_class"] = "NoSuchProcessor"
    (broken / "processor_config.json").write_text(json.dumps(config))
    files = load_processor(broken)
    assert files.vision is None and "takes no images" in (files.unknown or "")
    one = Conversation((Turn("user", ("?", Media("image"))),))
    counts = ConversationCounter(files).count(
        [one, Conversation((Turn("user", ("?",)),))], [[None], []]
    )
    assert list(counts.errors) == [0] and counts.errors[0].reason == "unsupported_media"
    assert counts.length[1] > 2 and counts.method[1] == HEURISTIC  # nobody compared it
