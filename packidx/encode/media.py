"""A record's media, and the model's inputs that transformers makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from packidx.encode.imports import allow_cuda_torchvision, import_torch, transformers_class
from packidx.errors import BadRecord, MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import KINDS, MediaColumns
from packidx.processor.families import VisionFamily
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.media.images import open_image
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE
from packidx.records.media.video import Video


def info_of(medium: Media) -> MediaInfo:
    """Return what decides a medium's tokens: an image's size, a video's frames, a sound's
    length."""
    if medium.kind != "image":
        return media_info(medium, ANYWHERE)
    width, height = opened_image(medium).size
    return MediaInfo(height, width)


def video_of(medium: Media) -> Video:
    """A medium as a video, opened or not."""
    return medium.ref if isinstance(medium.ref, Video) else Video(medium.ref)


def opened_image(medium: Media) -> Any:
    """A medium as a PIL image.

    Raises:
        BadRecord: ``missing_media``, or as `open_image`.
    """
    if hasattr(medium.ref, "size") and hasattr(medium.ref, "convert"):  # a PIL image
        return medium.ref
    if isinstance(medium.ref, str | bytes):
        return open_image(medium.ref)
    raise BadRecord("missing_media", f"an image is given as {type(medium.ref).__name__}: open it")


def decoded_image(medium: Media) -> Any:
    """The same with its pixels decoded.

    Raises:
        BadRecord: ``broken_media``, or as `opened_image`.
    """
    image = opened_image(medium)
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as cause:  # PIL, on decoding a broken file
        raise BadRecord("broken_media", f"an image cannot be decoded: {cause}") from cause
    return image


def refuse_unsupported(conversation: Conversation, files: ProcessorFiles) -> None:
    """
    Raises:
        BadRecord: the processor cannot encode a kind of its media.
    """
    for medium in conversation.media:
        if files.vision is None or medium.kind not in files.vision.feature_tokens:
            raise BadRecord("unsupported_media", f"{files.name} cannot encode {medium.kind}")


def encode_videos(
    videos: Sequence[tuple[Video, MediaInfo]], vision: VisionFamily, video_processor: Any
) -> dict[str, Any]:
    """Decode the frames that the plan counted and process them as the whole processor would.

    Args:
        videos: a sample's, in order, each with what `media_info` knows of it.

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
    pixels, metadata = [], []
    for video, info in videos:
        numbers = vision.sample_frames(info)
        pixels.append(frames_of(video, info, numbers))
        metadata.append(metadata_of(info, numbers))
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


def frames_of(video: Video, info: MediaInfo, numbers: np.ndarray) -> Any:
    """Some frames as uint8 ``[n, 3, height, width]``, channels first, as processors make them: no
    size is mistaken for the number of channels.

    Raises:
        BadRecord: the video cannot be decoded, or is not what the record says.
    """
    frames = video.frames(np.arange(info.num_frames) if info.extracted else numbers)
    if frames.shape[1:3] != (info.height, info.width):
        height, width = frames.shape[1:3]
        raise BadRecord(
            "broken_media",
            f"{video.label} has frames of {width}x{height} pixels, "
            f"the record says {info.width}x{info.height}",
        )
    return import_torch().from_numpy(frames).permute(0, 3, 1, 2).contiguous()


def metadata_of(info: MediaInfo, numbers: np.ndarray) -> Any:
    """transformers' `VideoMetadata` of a video of which these frames are taken."""
    allow_cuda_torchvision()
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=info.num_frames,
        fps=info.fps,
        duration=None if info.fps is None else info.num_frames / info.fps,
        height=info.height,
        width=info.width,
        frames_indices=numbers.tolist(),
    )


def _sampled_fps(metadata: Any) -> float:
    """Frames taken per second: `VideoMetadata.sampled_fps`, which transformers 4 lacks."""
    if metadata.fps is None:
        return 24.0
    taken = len(metadata.frames_indices) / metadata.total_num_frames
    return float(taken * metadata.fps)


def check_patches(media: MediaColumns, pixels: Mapping[str, Any], files: ProcessorFiles) -> None:
    """Check that the tensors of a sample's media have the patches that were counted.

    A release that does not know a setting of the processor leaves it out without a word.

    Raises:
        MismatchError: they are others.
    """
    if pixels and files.vision is not None and files.vision.pixels_in_order:
        # InternVL's patches are tiles of ``pixel_values`` and have no grids.
        tiles, counted = len(pixels["pixel_values"]), int(media.grid[:, 0].sum())
        if tiles != counted:
            raise _other_patches("image", files.name, f"{tiles} tiles", counted)
    for number, kind in enumerate(KINDS):
        given = pixels.get(f"{kind}_grid_thw")
        if given is None:
            continue
        grids, of_kind = np.asarray(given), media.grid[media.kind == number]
        if not np.array_equal(grids, of_kind):
            made = f"grids {grids.tolist()} (time, height, width)"
            raise _other_patches(kind, files.name, made, of_kind.tolist())


def _other_patches(kind: str, name: str, made: str, counted: Any) -> MismatchError:
    return MismatchError(
        f"the {kind} processor of {name} makes {made} of a sample, and {counted} were counted: "
        f"transformers {transformers_class('__version__')} does not read its settings as they were "
        "counted, use a newer release"
    )


@contextmanager
def told_as_not_built(name: str, kind: str, sizes: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Tell that transformers refuses media that were counted, as older releases do.

    Args:
        name: of the processor.
        kind: of the media, in the plural.
        sizes: width and height of each.

    Raises:
        MismatchError: it does.
    """
    try:
        yield
    except ValueError as cause:
        media = f"{kind} of {', '.join(f'{width}x{height}' for width, height in sizes)} pixels"
        reason = " ".join(str(cause).split())[:120]
        raise MismatchError(
            f"transformers {transformers_class('__version__')} does not build {media}, which were"
            f" counted, with the processor {name} ({reason}): use a newer release, or estimate"
            " again without them"
        ) from cause
