"""LLaVA, LLaVA-NeXT and LLaVA-OneVision count as transformers' processors do."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import family_talks
import numpy as np
import pytest
from PIL import Image

from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.families.base import FamilyMedia
from packidx.records.conversation import Conversation, MediaInfo, Turn

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


def test_videos_of_one_sample_have_equally_many_frames(made: dict[str, Made]) -> None:
    """Others make no tensor that a model takes."""
    counter, rng = ConversationCounter(made["llava_onevision"][1]), random.Random(0)
    for frames, is_refused in (([9, 9], False), ([4, 9], True)):
        videos = [family_talks.clip(rng, [number]) for number in frames]
        talk = Conversation((Turn("user", (*videos, "What?")), Turn("assistant", ("So.",))))
        if is_refused:
            with pytest.raises(BadRecord, match="equally many frames"):
                family_talks.counted(counter, talk)
        else:
            assert family_talks.counted(counter, talk)[1].media.grid[:, 0].tolist() == frames


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
        image = Image.new("RGB", (width, height))
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
