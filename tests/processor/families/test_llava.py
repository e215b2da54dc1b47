"""LLaVA, LLaVA-NeXT and LLaVA-OneVision count as transformers' processors do."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import numpy as np
import pytest
import torch

from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.families.base import FamilyMedia
from packidx.records.conversation import MediaInfo

Made = tuple[Any, ProcessorFiles]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    tmp = tmp_path_factory.mktemp("llava")
    processors = {
        "llava": tiles.llava(tmp),
        "llava_next": tiles.llava_next(tmp, 4),
        "llava_onevision": tiles.llava_onevision(tmp, 84),
    }
    return {
        name: (processor, tiles.saved(processor, tmp / name))
        for name, processor in processors.items()
    }


def real_patches(name: str, outputs: Any, images: Any, vision: Any) -> int:
    """Patches in the rows of `pixel_values` that are not padding: each row is a tile."""
    if "pixel_values" not in outputs:
        return 0
    rows = outputs["pixel_values"]
    side = rows[0].shape[-1] // 14
    if name == "llava":
        return sum(row.shape[-1] // 14 * (row.shape[-2] // 14) for row in rows)
    num_tiles = images.grids[:, 0].tolist()
    assert max(num_tiles) == rows[0].shape[0]  # padded to the largest number within one call
    for row, num in zip(rows, num_tiles, strict=True):
        used = torch.as_tensor(row).abs().flatten(1).sum(1) > 0
        assert used[:num].all() and not used[num:].any()
    return sum(num_tiles) * side**2


@pytest.mark.parametrize("name", ["llava", "llava_next", "llava_onevision"])
def test_conversations(made: dict[str, Made], name: str) -> None:
    processor, files = made[name]
    rng = random.Random(name)
    assert files.family == name
    several = 0
    for number in range(300):
        kinds = ["image"] * [0, 1, 1, 2, 3][number % 5]
        if name == "llava_onevision" and number % 3 == 0:
            kinds += ["video"] * (number % 2 + 1)
        messages = tiles.conversation(rng, kinds)
        parts = [part for message in messages for part in message["content"]]
        clips = [part for part in parts if part["type"] == "video"]
        for part in clips:  # as many frames of each make one tensor
            part["video"] = part["video"][: min(len(own["video"]) for own in clips)]
        outputs = processor.apply_chat_template(messages, tokenize=True, return_dict=True)
        frames = [len(video) for video in outputs.get("pixel_values_videos", [])]
        if len({*frames}) > 1:  # lists alone: they make no tensor that a model takes
            with pytest.raises(BadRecord, match="equally many frames"):
                tiles.counted(files, messages)
            continue
        ids, images, videos = tiles.counted(files, messages)
        assert ids == tiles.real_ids(outputs), messages
        assert images.patches.sum() == real_patches(name, outputs, images, files.vision)
        assert videos.grids[:, 0].tolist() == frames
        several += len(kinds) > 1
    assert several > 30


@pytest.mark.parametrize("name", ["llava_next", "llava_onevision"])
def test_sizes(tmp_path: Path, name: str) -> None:
    """A checkpoint's settings, thousands of sizes, one call: equal to one image at a time."""
    processor = getattr(tiles, name)(tmp_path)
    vision = tiles.saved(processor, tmp_path / name).vision
    assert isinstance(vision, FamilyMedia) and isinstance(vision.images, partial)
    numbers = vision.images.args[0]
    rng = np.random.default_rng(1)
    near = [edge + off for edge in (*numbers.resolutions[3], 672, 768, 1344) for off in (-1, 0, 1)]
    sizes = np.concatenate(
        [
            rng.integers(1, 4000, (1000, 2)),
            rng.integers(1, 60, (500, 2)),
            np.exp(rng.uniform(0, 11, (1000, 2))).astype(int) + 1,
            np.array([(height, width) for height in near for width in near]),
            rng.integers(1, 500, (500, 1)) * rng.integers(1, 7, (500, 2)),
        ]
    )
    expected = processor._get_num_multimodal_tokens(image_sizes=sizes.tolist())
    counts = vision.count_images(sizes)
    assert counts.tokens.tolist() == expected["num_image_tokens"]
    assert not counts.errors and counts.expansions is None
    for height, width in [(1, 1), (1, 700), (333, 90), (1000, 1001), (336, 672), (385, 384)]:
        image = tiles.Image.new("RGB", (width, height))
        [rows] = processor.image_processor([image])["pixel_values"]
        assert vision.count_images([(height, width)]).grids.tolist() == [
            [len(rows), numbers.patches, numbers.patches]
        ]


def test_tiles_only_for_a_single_image(made: dict[str, Made]) -> None:
    vision = made["llava_onevision"][1].vision
    sizes = [(300, 100), (300, 100), (300, 100)]
    counts = vision.count_images(sizes, [5, 2, 5])  # type: ignore[union-attr,call-arg]
    assert counts.tokens[0] == counts.tokens[2] == 36 + 1
    assert counts.tokens[1] > 37
    assert counts.grids[:, 0].tolist() == [1, counts.grids[1, 0], 1]


def test_broken_sizes(made: dict[str, Made]) -> None:
    for _, files in made.values():
        counts = files.vision.count_images([(0, 5), (5, 5), (5, -1)])  # type: ignore[union-attr]
        assert counts.errors[0].reason == counts.errors[2].reason == "broken_media"
        assert (counts.tokens > 0).tolist() == [False, True, False]
        assert counts.grids[[0, 2]].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_frames(made: dict[str, Made], tmp_path: Path) -> None:
    """Frames are taken as the video processor's settings say, where a record does not."""
    whole = made["llava_onevision"][1].vision
    assert whole is not None
    assert whole.sample_frames(MediaInfo(20, 20, 90, 30.0)).tolist() == list(range(90))
    given = MediaInfo(20, 20, 90, 30.0, frame_indices=(3, 50, 50))
    assert whole.sample_frames(given).tolist() == [3, 50, 50]
    for settings in ({"num_frames": 8}, {"fps": 2}):
        processor = tiles.llava_onevision(tmp_path, 84, do_sample_frames=True, **settings)
        vision = tiles.saved(processor, tmp_path / "sampled").vision
        assert vision is not None
        for num, fps in ((8, 4.0), (31, 29.97), (90, 30.0), (400, 23.976)):
            clip = np.zeros((num, 20, 20, 3), np.uint8)
            metadata = {"total_num_frames": num, "fps": fps, "duration": num / fps}
            info = MediaInfo(20, 20, num, fps)
            real = processor.video_processor(
                [clip], video_metadata=[metadata], return_metadata=True
            )
            indices = real["video_metadata"][0].frames_indices
            assert vision.sample_frames(info).tolist() == list(indices)
            assert vision.count_videos([info]).grids[0, 0] == len(real["pixel_values_videos"][0])
            assert len(vision.sample_frames(MediaInfo(20, 20, num, fps, extracted=True))) == num
        short = vision.count_videos([MediaInfo(20, 20, 3, None), MediaInfo(0, 20, 9, 1.0)])
        reasons = [short.errors[number].reason for number in (0, 1)]
        assert reasons == ["too_few_frames" if "num_frames" in settings else "unknown_fps"] + [
            "broken_media"
        ]
        assert short.tokens.tolist() == [0, 0] and not short.grids.any()
