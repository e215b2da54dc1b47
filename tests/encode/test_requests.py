"""Options of one medium, against `qwen_vl_utils` and the real processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from packidx_cli.main import main
from PIL import Image
from qwen_vl_utils import fetch_image
from reading import open_media
from transformers import AutoVideoProcessor
from transformers.video_utils import VideoMetadata

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord
from packidx.records.media.clips import Video
from packidx.records.media.paths import MediaRoot

PATCH = {"qwen2.5-vl": 14, "qwen3-vl": 16}
IMAGES: list[dict[str, Any]] = [
    {"max_pixels": 50_176},
    {"min_pixels": 500_000},
    {"min_pixels": 200_704, "max_pixels": 250_880},
    {"resized_height": 100, "resized_width": 333},
    {"resized_height": 3000, "resized_width": 40, "max_pixels": 999},
    {"max_pixels": 90_000_000},
]
REFUSED: list[dict[str, Any]] = [
    {"min_pixels": 9000, "max_pixels": 5000},
    {"resized_height": 100},
    {"max_pixels": 1},
    {"resized_height": 28, "resized_width": 28_000},
    {"max_pixels": "many"},
    {"max_pixels": 5000.5},
]
VIDEOS: dict[str, list[dict[str, Any]]] = {
    "qwen3-vl": [{"fps": 1.0}, {"fps": 3}, {"nframes": 8}],
    "qwen2.5-vl": [{"fps": 1.0}, {"nframes": 8}, {"fps": 5, "max_frames": 6}, {"min_frames": 30}],
}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    Image.effect_noise((640, 480), 90).convert("RGB").save(folder / "a.png")
    Image.effect_noise((90, 410), 90).save(folder / "b.png")
    write_clip(folder / "v.mp4", frames=40)
    return folder


def asked(kind: str, name: Any, **options: Any) -> dict[str, Any]:
    content = [{"type": kind, kind: name, **options}, {"type": "text", "text": "What?"}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "Yes."}]
    return {"messages": turns}


def counted(records: list[Any], folder: Path, media: Path, tmp_path: Path) -> list[Any]:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["estimate", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "l"), "--quiet"]
    command += ["--media-root", str(media), "--workers", "1", "--max-rejected", "1"]
    assert main([*command, "--processor", str(folder)]) == 0
    return ds.dataset([*map(str, (tmp_path / "l").glob("part-*"))]).to_table().to_pylist()


@pytest.mark.parametrize("name", PATCH)
def test_images_are_resized_as_qwen_vl_utils_does(
    name: str, whole_processors: Path, media: Path, tmp_path: Path
) -> None:
    folder, root = whole_processors / name, MediaRoot(str(media), True)
    encoder = ProcessorEncoder(str(folder))
    cases = [(file, options) for file in ("a.png", "b.png") for options in IMAGES]
    records = [asked("image", file, **options) for file, options in cases]
    rows = counted(records, folder, media, tmp_path)
    for (file, options), record, row in zip(cases, records, rows, strict=True):
        assert row["method"] == "exact", row
        resized = fetch_image({"image": str(media / file), **options}, image_patch_size=PATCH[name])
        real, ours = encoder(asked("image", resized)), encoder(open_media(record, root))
        assert real.keys() == ours.keys()
        assert all(torch.equal(real[key], ours[key]) for key in real), options
        assert row["length"] == len(real["input_ids"]) == encoder.count(open_media(record, root))


@pytest.mark.parametrize("name", PATCH)
def test_frames_are_those_that_the_processor_samples(
    name: str, whole_processors: Path, media: Path, tmp_path: Path
) -> None:
    folder, root = whole_processors / name, MediaRoot(str(media), True)
    encoder = ProcessorEncoder(str(folder))
    records = [asked("video", "v.mp4", **options) for options in VIDEOS[name]]
    real = AutoVideoProcessor.from_pretrained(folder)
    video = Video(str(media / "v.mp4"))
    frames = torch.from_numpy(video.frames(range(40))).permute(0, 3, 1, 2)
    for options, record, row in zip(
        VIDEOS[name], records, counted(records, folder, media, tmp_path), strict=True
    ):
        assert row["method"] == "exact", row
        given: dict[str, Any] = {
            "num_frames" if k == "nframes" else k: v for k, v in options.items()
        }
        given |= {"fps": None} if "num_frames" in given else {"fps": given.get("fps", 2)}
        metadata = VideoMetadata(total_num_frames=40, fps=10.0, width=96, height=64, duration=4.0)
        expected = real(
            videos=[frames],
            video_metadata=[metadata],
            do_sample_frames=True,
            return_tensors="pt",
            **given,
        )
        built = encoder(open_media(record, root))
        assert torch.equal(built["video_grid_thw"], expected["video_grid_thw"]), options
        assert torch.equal(built["pixel_values_videos"], expected["pixel_values_videos"]), options
        assert row["length"] == len(built["input_ids"])


def test_what_cannot_be_done_is_refused(
    whole_processors: Path, media: Path, tmp_path: Path
) -> None:
    folder, root = whole_processors / "qwen2.5-vl", MediaRoot(str(media), True)
    records = [asked("image", "a.png", **options) for options in REFUSED]
    records += [asked("video", "v.mp4", fps=1, nframes=8), asked("video", "v.mp4", max_pixels=9)]
    for record, row in zip(records, counted(records, folder, media, tmp_path), strict=True):
        assert row["reason"] == "unsupported_media_option", (record, row)
        with pytest.raises(BadRecord, match="unsupported_media_option"):
            ProcessorEncoder(str(folder))(open_media(record, root))
