"""Idefics3 and SmolVLM count as transformers' processors do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import family_talks
import numpy as np
import pytest
import torch
from clips import write_clip
from PIL import Image
from transformers.video_utils import VideoMetadata

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord
from packidx.processor.counter import ConversationCounter
from packidx.processor.families import FAMILIES
from packidx.records.conversation import Conversation, MediaInfo, Turn


def real_grid(processor: Any, height: int, width: int) -> tuple[int, int]:
    """Rows and columns that the image processor's own steps make of an image without pixels."""
    image = torch.empty(1, 3, height, width, device="meta")
    if processor.do_resize:
        image = processor.resize(image, processor.size, resample=0)
    side = processor.max_image_size["longest_edge"]
    image = processor.resize_for_vision_encoder(image, side, resample=0)
    _, rows, columns = processor.split_images(image, processor.max_image_size, resample=0)
    return rows[0], columns[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": {"longest_edge": 364}},
        {"size": {"longest_edge": 1001}},
        {"size": {"longest_edge": 5001}},
        {"do_resize": False},
    ],
)
def test_sizes(tmp_path: Path, settings: dict[str, Any]) -> None:
    processor = tiles.idefics3(tmp_path, **settings)
    vision: Any = tiles.saved(processor, tmp_path / "sizes").vision
    rng = np.random.default_rng(len(str(settings)))
    near = [n * 364 + off for n in (1, 2, 4) for off in (-1, 0, 1)]
    sizes = np.concatenate(
        [
            rng.integers(1, 2000, (500, 2)),
            rng.integers(1, 40, (200, 2)),
            rng.integers(1, 300, (200, 1)) * rng.integers(1, 7, (200, 2)),
            np.stack(np.meshgrid(near, near), axis=-1).reshape(-1, 2),
            np.array([(1, 1), (1, 2000), (2000, 3), (3, 2000)]),
        ]
    )
    expected = [real_grid(processor.image_processor, *size) for size in sizes.tolist()]
    counts = vision.count_images(sizes)
    assert counts.grids[:, 0].tolist() == [rows * columns + 1 for rows, columns in expected]
    for number in range(0, len(sizes), 40):
        rows, columns = expected[number]
        expansion = counts.expansions[number]
        written = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        assert expansion.text.replace("<image>", "<image>" * 169) == written
        assert expansion.runs == (169,) * (rows * columns + 1)


@pytest.mark.parametrize("max_frames", [5, 64])
def test_videos(tmp_path: Path, max_frames: int) -> None:
    processor = tiles.smolvlm(tmp_path, 128, fps=2, max_frames=max_frames)
    counter = ConversationCounter(tiles.saved(processor, tmp_path / "video"))
    rng, lengths = random.Random(max_frames), set()
    for number in range(60):
        clips = [family_talks.clip(rng, range(4, 40)) for _ in range(number % 2 + 1)]
        talk = Conversation((Turn("user", (*clips, "What?")), Turn("assistant", ("So.",))))
        metadata = [
            {"total_num_frames": len(clip.ref), "fps": fps, "duration": len(clip.ref) / fps}
            for clip in clips
            for fps in [clip.stated["fps"]]
        ]
        outputs = processor.apply_chat_template(
            family_talks.messages_of(talk, lists=True),
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"video_metadata": [metadata]},
        )
        ids, counts = family_talks.counted(counter, talk)
        assert ids == outputs["input_ids"][0].tolist()
        shape, grids = outputs["pixel_values"].shape, counts.media.grid
        assert shape[:2] == (len(clips), grids[:, 0].max())  # padded to the longest of the sample
        assert shape[-1] == 128 and (grids[:, 1:] == 8).all()
        lengths.update(grids[:, 0].tolist())
    assert len(lengths) > 3 and max(lengths) <= max_frames


def test_frames(tmp_path: Path) -> None:
    processor = tiles.smolvlm(tmp_path, 128, fps=1, max_frames=16)
    vision = tiles.saved(processor, tmp_path / "frames").vision
    assert vision is not None
    rng = random.Random(3)
    for _ in range(1000):
        total = rng.choice([1, 2, 3, rng.randrange(1, 200), rng.randrange(1, 20_000)])
        fps = rng.choice([1.0, 24.0, 25.0, 30.0, 29.97, 12.5, rng.uniform(0.1, 120)])
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
        real = processor.video_processor.sample_frames(metadata)
        assert vision.sample_frames(MediaInfo(9, 9, total, fps)).tolist() == real.tolist()
    listed = MediaInfo(9, 9, 30, 2.0, extracted=True)
    assert len(vision.sample_frames(listed)) == 30
    assert vision.sample_frames(MediaInfo(9, 9, 30, 2.0, (7, 9))).tolist() == [7, 9]
    counts = vision.count_videos(
        [
            MediaInfo(9, 9, 30),
            MediaInfo(9, 9, 0, 2.0),
            MediaInfo(9, 9, 30, 1e-5, (7, 9)),
            MediaInfo(9, 9, 90_000 * 30, 30.0),
        ]
    )
    reasons = [counts.errors[number].reason for number in range(3)]
    assert reasons == ["unknown_fps", "broken_media", "unknown_fps"]
    assert counts.tokens.tolist() == [0, 0, 0, 16 * 4]
    assert counts.expansions is not None and counts.expansions[3] is not None
    assert "sixteen frames from a 1 day, 1:00:00 [H:MM:SS]" in counts.expansions[3].text


def test_an_image_and_a_video_of_one_sample_are_refused(tmp_path: Path) -> None:
    """The processor's own ``pixel_values`` are then those of the video alone."""
    tiles.saved(tiles.smolvlm(tmp_path, 128, fps=1), tmp_path / "mixed")
    clip = write_clip(tmp_path / "2.mp4", frames=4, size=(130, 66), fps="2")
    parts = [
        {"type": "image", "image": Image.new("RGB", (300, 200))},
        {"type": "video", "video": str(clip)},
        {"type": "text", "text": "What?"},
    ]
    encoder = ProcessorEncoder(tmp_path / "mixed")
    for refused in (encoder, encoder.count):
        with pytest.raises(BadRecord, match="images and videos of one sample together"):
            refused({"messages": [{"role": "user", "content": parts}]})


def test_videos_are_whole_without_sampling(tmp_path: Path) -> None:
    files = tiles.saved(tiles.smolvlm(tmp_path, 128), tmp_path / "smolvlm")
    video = dict(files.video_settings or {}) | {"video_sampling": None, "fps": None}
    whole = FAMILIES["SmolVLMProcessor"].build(
        dict(files.image_settings or {}), video | {"num_frames": None}, dict(files.own_settings)
    )
    assert len(whole.sample_frames(MediaInfo(9, 9, 700, 30.0))) == 700
