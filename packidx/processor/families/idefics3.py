"""Idefics3 and SmolVLM: an image is cut into a grid of tiles, and the whole image follows.

Every tile is announced by its row and column in the text. SmolVLM has video: each frame is one
tile with its time before it, and the text says how many frames there are and how long they last.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import SourceError, missing_package
from packidx.processor.families.base import (
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    FamilyMedia,
    Frames,
    ImageCounts,
    MediaCounts,
    Settings,
    VideoCount,
    frame_seconds,
    known_fps,
    longest_edge,
    must_resize,
    patches_per_side,
    read_positive_int,
)
from packidx.records.conversation import MediaInfo

IMAGE, VIDEO, AROUND, GLOBAL = "<image>", "<video>", "<fake_token_around_image>", "<global-img>"
MAX_EDGE = 4096
"""Pixels; `MAX_IMAGE_SIZE` of both image processors."""
SKIPPED_SECONDS = 1
"""Left out at both ends of a long video (`skip_secs` of `SmolVLMVideoProcessor.sample_frames`)."""


def _count_images(
    side: int,
    edge: int | None,
    splits: bool,
    tile: tuple[int, int],
    heights: Int64s,
    widths: Int64s,
    _: Int64s,
) -> ImageCounts:
    """Return what images become that are resized to a longer side of `edge` pixels (None leaves
    them) and cut, if `splits`, into tiles of `side` pixels, of so many patches a side and tokens.
    """
    rows = columns = np.zeros_like(heights)
    if splits:
        rows, columns = _fit_grid(heights, widths, side, edge)
    patches, tokens = tile
    num_tiles = rows * columns + 1
    shapes = zip(rows.tolist(), columns.tolist(), strict=True)
    expansions = [_write_tiles(*shape, tokens) for shape in shapes]
    return (num_tiles, patches, patches), num_tiles * tokens, expansions


def _fit_grid(
    heights: Int64s, widths: Int64s, side: int, edge: int | None
) -> tuple[Int64s, Int64s]:
    """Rows and columns of tiles of n images; 0 and 0 where the whole image is the only one.

    transformers 5.23, `Idefics3ImageProcessor._preprocess` (`get_resize_output_image_size`,
    `resize_for_vision_encoder`, `split_images`), for n images at once. Its
    `get_number_of_image_patches` is another arithmetic and at times another number.
    """
    if edge is not None:
        heights, widths = _with_longer(heights, widths, edge, is_even=True)
        if edge > MAX_EDGE:
            heights, widths = _with_longer(heights, widths, MAX_EDGE, is_even=False)
    ratio = widths / heights
    wide = widths >= heights
    longer = -(-np.maximum(heights, widths) // side) * side
    shorter = np.where(wide, longer / ratio, longer * ratio).astype(np.int64)
    longer, shorter = longer // side, -(-shorter // side)
    rows, columns = np.where(wide, shorter, longer), np.where(wide, longer, shorter)
    is_tile = np.maximum(rows, columns) <= 1
    return np.where(is_tile, 0, rows), np.where(is_tile, 0, columns)


# -- video -----------------------------------------------------------------------------------------


def _count_video(tile: tuple[int, int], video: MediaInfo, frames: Frames) -> VideoCount:
    """Return what a video becomes, without the opening of its text."""
    (patches, tokens), num = tile, len(frames)
    times = frame_seconds(frames, video.fps)
    seconds = int(video.num_frames / video.fps) if video.fps else int(times[-1])
    text = f"from a {timedelta(seconds=seconds)} [H:MM:SS] video.\n"
    for time in times:
        clock = f"{int(time // 60):02d}:{int(time % 60):02d}"
        text += f"\nFrame from {clock}:{AROUND}{GLOBAL}{IMAGE}{AROUND}"
    return (num, patches, patches), num * tokens, Expansion(f"{text}\n\n", (tokens,) * num)


def _add_openings(counts: MediaCounts, samples: Int64s) -> MediaCounts:
    """Put before each video's text how many frames the longest of its sample has."""
    longest = np.zeros(samples.max(initial=-1) + 1, np.int64)
    np.maximum.at(longest, samples, counts.grids[:, 0])
    try:
        from num2words import num2words
    except ModuleNotFoundError as error:
        raise missing_package("counting SmolVLM's videos", error, "num2words") from error
    expansions = []
    for expansion, num in zip(counts.expansions or (), longest[samples].tolist(), strict=True):
        opening = f"You are provided the following series of {num2words(num)} frames "
        expansions.append(expansion and Expansion(opening + expansion.text, expansion.runs))
    return replace(counts, expansions=expansions)


def _sample_frames(most: int, wanted_fps: float, total: int, fps: float | None) -> Frames:
    """Sample at most `most` frames, `wanted_fps` a second, as
    `SmolVLMVideoProcessor.sample_frames` of transformers 5.23."""
    fps = known_fps(fps)
    seconds = total / fps
    wanted = max(1, min(round(wanted_fps * seconds), most))
    start, end = 0, total - 1
    if seconds - 2 * SKIPPED_SECONDS > most * wanted_fps:
        start = int(SKIPPED_SECONDS * fps)
        end = min(int(total - SKIPPED_SECONDS * fps), end)
    if start >= end:
        start, end = 0, total - 1
    return np.unique(np.linspace(start, end, wanted, dtype=np.int64))


def _with_longer(
    heights: Int64s, widths: Int64s, edge: int, *, is_even: bool
) -> tuple[Int64s, Int64s]:
    """Sizes of the same shapes whose longer side is `edge`."""
    ratio, wide = widths / heights, widths >= heights
    shorter = np.where(wide, edge / ratio, edge * ratio).astype(np.int64)
    shorter = np.maximum(shorter + shorter % 2 if is_even else shorter, 1)
    return np.where(wide, shorter, edge), np.where(wide, edge, shorter)


@lru_cache(maxsize=1 << 10)
def _write_tiles(rows: int, columns: int, tokens: int) -> Expansion:
    text = ""
    for row in range(1, rows + 1):
        text += "".join(f"{AROUND}<row_{row}_col_{n}>{IMAGE}" for n in range(1, columns + 1))
        text += "\n"
    text += "\n" if rows else ""
    text += f"{AROUND}{GLOBAL}{IMAGE}{AROUND}"
    return Expansion(text, (tokens,) * (rows * columns + 1))


def _tile_counts(image: Settings, own: Settings) -> tuple[int, int]:
    """Patches per side and tokens of a tile."""
    side, tokens = _tile_side(image), read_positive_int(own, "image_seq_len")
    return patches_per_side(side, tokens), tokens


def _tile_side(image: Settings, name: str = "max_image_size") -> int:
    return longest_edge(image.get("max_image_size"), name)


def _build_idefics3(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    edge = longest_edge(image.get("size"), "size") if image.get("do_resize") else None
    splits = bool(image.get("do_image_splitting"))
    return FamilyMedia(
        name="idefics3",
        placeholders={"image": IMAGE},
        feature=IMAGE,
        images=partial(_count_images, _tile_side(image), edge, splits, _tile_counts(image, own)),
        image_options={"return_row_col_info": True},
        model_inputs=("pixel_values", "pixel_attention_mask"),
    )


def _build_smolvlm(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    media = _build_idefics3(image, video, own)
    given = video.get("video_sampling") or {}
    num_frames = given.get("max_frames", video.get("num_frames"))
    fps = given.get("fps", video.get("fps"))
    if (side := _tile_side(image)) != _tile_side(video, "max_image_size of videos"):
        raise SourceError(f"its video frames must be {side} pixels a side as its image tiles are")
    must_resize(video, "video")
    if (num_frames is None) != (fps is None):
        raise SourceError(
            f"its video settings have num_frames {num_frames} and fps {fps}: set both or none"
        )
    if num_frames is None and video.get("do_sample_frames"):
        raise SourceError("its video settings have do_sample_frames, but no num_frames and no fps")
    return replace(
        media,
        name="smolvlm",
        placeholders={"image": IMAGE, "video": VIDEO},
        video=partial(_count_video, _tile_counts(image, own)),
        sample=None if num_frames is None else partial(_sample_frames, num_frames, float(fps or 0)),
        together=_add_openings,
        # `SmolVLMProcessor` returns both as ``pixel_values``: the second replaces the first.
        one_kind_per_sample=True,
    )


# Class defaults of transformers 5.23: Idefics3ImageProcessor, SmolVLMImageProcessor and
# SmolVLMVideoProcessor.
_DEFAULTS: dict[str, Any] = {
    **SIGLIP_DEFAULTS,
    "do_pad": True,
    "resample": 1,
    "size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364},
}
_IMAGE = {**_DEFAULTS, "do_image_splitting": True}

_VIDEO = {**_DEFAULTS, "do_sample_frames": False, "video_sampling": None}
_OWN = {"image_seq_len": 169}

IDEFICS3 = Family("idefics3", "Idefics3Processor", _IMAGE, {}, _build_idefics3, _OWN)
SMOLVLM = Family("smolvlm", "SmolVLMProcessor", _IMAGE, _VIDEO, _build_smolvlm, _OWN)
