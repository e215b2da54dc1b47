"""Opened videos as the inputs that a family's own video processor makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packidx.encode.imports import allow_cuda_torchvision, import_torch
from packidx.errors import BadRecord
from packidx.processor.families import VisionFamily
from packidx.records.conversation import MediaInfo
from packidx.records.media.video import Video


def encode_videos(
    videos: Sequence[tuple[Video, MediaInfo]], vision: VisionFamily, video_processor: Any
) -> dict[str, Any]:
    """Decode the frames that the plan counted and process them as the whole processor would.

    Args:
        videos: a sample's, in order, each with what `media_info` knows of it.
        vision: chooses the frames.
        video_processor: the transformers processor's own.

    Returns:
        Those of ``vision.model_inputs`` that come from videos, as tensors: for Qwen
        ``pixel_values_videos`` float32 ``[patches, dim]`` and ``video_grid_thw`` int64 ``[n, 3]``,
        for Qwen2.5-VL also ``second_per_grid_ts`` float32 ``[n]``, seconds per step of the grid.

    Raises:
        BadRecord: a video cannot be decoded, or is not what the record says.
        MissingExtraError: torch, transformers or PyAV is missing.
    """
    if not videos:
        return {}
    torch = import_torch()
    allow_cuda_torchvision()
    from transformers.video_utils import VideoMetadata

    pixels, metadata = [], []
    for video, info in videos:
        numbers = vision.sample_frames(info)
        frames = video.frames(np.arange(info.num_frames) if info.extracted else numbers)
        if frames.shape[1:3] != (info.height, info.width):
            height, width = frames.shape[1:3]
            raise BadRecord(
                "broken_media",
                f"{video.label} has frames of {width}x{height} pixels, "
                f"the record says {info.width}x{info.height}",
            )
        # Channels first, as processors make it: no size is mistaken for the number of channels.
        pixels.append(torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous())
        metadata.append(
            VideoMetadata(
                total_num_frames=info.num_frames,
                fps=info.fps,
                duration=None if info.fps is None else info.num_frames / info.fps,
                height=info.height,
                width=info.width,
                frames_indices=numbers.tolist(),
            )
        )
    features = video_processor(
        videos=pixels, video_metadata=metadata, do_sample_frames=False, return_tensors="pt"
    )
    if "second_per_grid_ts" in vision.model_inputs:
        # As `Qwen2_5_VLProcessor._process_videos`.
        step = video_processor.temporal_patch_size
        seconds = [step / _sampled_fps(video) for video in metadata]
        features["second_per_grid_ts"] = torch.tensor(seconds)
    if vision.pixels_in_order:  # frames as images, one after the other
        return {"pixel_values": features["pixel_values_videos"].flatten(0, 1)}
    return {name: features[name] for name in vision.model_inputs if name in features}


def _sampled_fps(metadata: Any) -> float:
    """Frames taken per second: `VideoMetadata.sampled_fps`, which transformers 4 lacks."""
    if metadata.fps is None:
        return 24.0
    taken = len(metadata.frames_indices) / metadata.total_num_frames
    return float(taken * metadata.fps)
