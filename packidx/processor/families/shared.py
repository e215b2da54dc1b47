"""Target sizes of images, vectorised: the arithmetic that image processors do one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.arrays import Int64s
from packidx.errors import BadRecord, SourceError
from packidx.processor.families.base import Settings
from packidx.records.conversation import MediaInfo

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""
_BLOCK = 8192
"""Sizes handled at a time, so that the steps' arrays stay in the processor's cache."""


def smart_resize(
    heights: ArrayLike,
    widths: ArrayLike,
    factor: int,
    min_pixels: int,
    max_pixels: int | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths that Qwen's image processors resize to, in pixels.

    transformers 5.23, `models/qwen2_vl/image_processing_qwen2_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of the results' product; the latter also ``[n]``.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive or the aspect ratio exceeds 200.
    """
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    limits = np.broadcast_to(np.asarray(max_pixels, np.int64), height.shape)
    resized = np.empty((2, len(height)), np.int64)
    for at in range(0, len(height), _BLOCK):
        block = slice(at, at + _BLOCK)
        resized[:, block] = _resize(height[block], width[block], factor, min_pixels, limits[block])
    return resized[0], resized[1]


def _resize(
    height: Int64s, width: Int64s, factor: int, min_pixels: int, max_pixels: Int64s
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`smart_resize` of one block; its whole numbers are exact in float64."""
    valid = (height > 0) & (width > 0)
    h, w = (np.where(valid, side, 1).astype(np.float64) for side in (height, width))
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor) * factor for side in (h, w))
    pixels = h_bar * w_bar
    if len(shrink := np.flatnonzero(pixels > max_pixels)):
        high, wide = h[shrink], w[shrink]
        beta = np.sqrt(high * wide / max_pixels[shrink])
        h_bar[shrink] = np.maximum(factor, np.floor(high / beta / factor) * factor)
        w_bar[shrink] = np.maximum(factor, np.floor(wide / beta / factor) * factor)
    grow = np.flatnonzero((pixels < min_pixels) & (pixels <= max_pixels))
    if len(grow):
        high, wide = h[grow], w[grow]
        beta = np.sqrt(min_pixels / (high * wide))
        h_bar[grow] = np.ceil(high * beta / factor) * factor
        w_bar[grow] = np.ceil(wide * beta / factor) * factor
    return h_bar * valid, w_bar * valid


def smart_resize_video(
    frames: ArrayLike,
    heights: ArrayLike,
    widths: ArrayLike,
    *,
    temporal_factor: int,
    factor: int,
    min_pixels: int,
    max_pixels: int | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths of frames where a whole video's pixels are limited, not each frame's.

    transformers 5.23, `smart_resize` of `models/qwen3_vl/video_processing_qwen3_vl.py`, vectorised
    like `smart_resize`. Sides below `factor` are enlarged before the aspect ratio is looked at.

    Args:
        frames, heights, widths: of each video, ``[n]``; heights and widths in pixels.
        temporal_factor: frames are counted in its multiples.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of frames * height * width; the latter also ``[n]``.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive, the aspect ratio exceeds 200, or
        there are fewer than `temporal_factor` frames.
    """
    number = np.atleast_1d(np.asarray(frames, np.int64))
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    valid = (height > 0) & (width > 0) & (number >= temporal_factor)
    h, w = np.where(valid, height, factor), np.where(valid, width, factor)
    f = np.where(valid, number, temporal_factor)
    scale = np.maximum(factor / h, factor / w)
    h, w = (
        np.where((h < factor) | (w < factor), (side * scale).astype(np.int64), side)
        for side in (h, w)
    )
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))
    f_bar = np.rint(f / temporal_factor).astype(np.int64) * temporal_factor

    pixels = f_bar * h_bar * w_bar
    shrink, grow = pixels > max_pixels, pixels < min_pixels
    beta = np.sqrt((f * h * w) / max_pixels)
    smaller = [_multiple(np.floor(side / beta / factor), factor, shrink) for side in (h, w)]
    beta = np.sqrt(min_pixels / (f * h * w))
    larger = [_multiple(np.ceil(side * beta / factor), factor, grow) for side in (h, w)]
    h_bar = np.where(shrink, np.maximum(factor, smaller[0]), np.where(grow, larger[0], h_bar))
    w_bar = np.where(shrink, np.maximum(factor, smaller[1]), np.where(grow, larger[1], w_bar))
    return np.where(valid, h_bar, 0), np.where(valid, w_bar, 0)


def _multiple(
    quotients: NDArray[np.float64], factor: int, chosen: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """`quotients` times `factor` where `chosen`; elsewhere they may be infinite: 0."""
    rounded: NDArray[np.int64] = np.where(chosen, quotients, 0).astype(np.int64)
    return rounded * factor


def must_resize(settings: Settings, kind: str = "image") -> None:
    """
    Raises:
        SourceError: resizing is switched off.
    """
    if not settings.get("do_resize"):
        raise SourceError(f"its {kind} settings have do_resize false: set it to true")


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Sizes of patches, and how many pixels an image, a frame or a video may have."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """Pixels per side that make one token."""
        return self.patch_size * self.merge_size

    def grid(self, frames: int, heights: ArrayLike, widths: ArrayLike) -> tuple[Int64s, Int64s]:
        """Patches per column and per row of `resized` media, which may have no video's frames."""
        height, width = self.resized(frames, heights, widths)
        return height // self.patch_size, width // self.patch_size

    def resized(
        self,
        frames: ArrayLike,
        heights: ArrayLike,
        widths: ArrayLike,
        max_pixels: int | NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`smart_resize_video` by these limits, or with another `max_pixels`."""
        return smart_resize_video(
            frames,
            heights,
            widths,
            temporal_factor=self.temporal_patch_size,
            factor=self.factor,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels if max_pixels is None else max_pixels,
        )


def pixel_limits(settings: Settings, kind: str) -> dict[str, Any]:
    """The fields of `PixelLimits` out of complete settings.

    Raises:
        SourceError: resizing is switched off, or the limits are missing.
    """
    must_resize(settings, kind)
    size = settings["size"]
    if not size.get("shortest_edge") or not size.get("longest_edge"):
        raise SourceError(
            f"the {kind} processor's size needs shortest_edge and longest_edge (pixels), "
            f"but it is {size}"
        )
    names = ("patch_size", "temporal_patch_size", "merge_size")
    pixels = {"min_pixels": int(size["shortest_edge"]), "max_pixels": int(size["longest_edge"])}
    return {name: int(settings[name]) for name in names} | pixels


Frames = NDArray[np.int64]

UNKNOWN_FPS = 24.0
"""What transformers' processors take for timestamps where the frame rate is not known."""
MAX_FRAMES = 10_000_000
"""92 hours at 30 frames per second; a header or record that claims more is wrong."""
MIN_FPS = 0.001
"""Less is no frame rate: durations stay finite, and timestamps those of a calendar."""


def frames_used(video: MediaInfo, sample: Callable[[int, float | None], Frames] | None) -> Frames:
    """``[f]`` numbers of the frames that are used.

    Frames that the record names are taken as they are, extracted ones are all taken; else `sample`
    (number of frames, frames per second) chooses, and without it all are taken.

    Raises:
        BadRecord: ``broken_media``, ``media_too_large``, ``too_few_frames`` or as `sample`.
    """
    if max(video.num_frames, *(video.frame_indices or ()), 0) > MAX_FRAMES:
        raise BadRecord("media_too_large", f"a video of over {MAX_FRAMES:,} frames")
    if video.height <= 0 or video.width <= 0 or video.num_frames <= 0:
        size = f"{video.width}x{video.height} pixels and {video.num_frames} frames"
        raise BadRecord("broken_media", f"a video of {size}")
    if video.frame_indices is not None:
        frames = np.asarray(video.frame_indices, np.int64)
        last = -1 if video.extracted else video.num_frames - 1
        if len(frames) and (frames.min() < 0 or frames.max() > last >= 0):
            named = f"frames {frames.min()} to {frames.max()} are named"
            raise BadRecord("broken_media", f"{named} of a video of {video.num_frames} frames")
    elif video.extracted or sample is None:
        frames = np.arange(video.num_frames, dtype=np.int64)
    else:
        frames = sample(video.num_frames, video.fps)
    if not len(frames):
        raise too_few_frames(video.num_frames)
    return frames


def timestamps(frames: Frames, fps: float | None) -> list[float]:
    """Seconds at which `frames` are shown (transformers 5.23, `VideoMetadata.timestamps`).

    Raises:
        BadRecord: as `known_fps`, but a rate of None is taken to be `UNKNOWN_FPS`.
    """
    seconds: list[float] = (frames / (UNKNOWN_FPS if fps is None else known_fps(fps))).tolist()
    return seconds


def known_fps(fps: float | None) -> float:
    """The frame rate, where frames are sampled by time or have timestamps.

    Raises:
        BadRecord: ``unknown_fps`` where it is None, infinite or below `MIN_FPS`.
    """
    if fps is None or not MIN_FPS <= fps < math.inf:
        text = f"a video's frame rate is {fps}, but its processor goes by time: state its fps"
        raise BadRecord("unknown_fps", text)
    return fps


def too_few_frames(num_frames: int, needed: int | None = None) -> BadRecord:
    """Why a video is too short for its processor."""
    least = "more" if needed is None else str(needed)
    text = f"a video of {num_frames} frames, but its processor needs {least}"
    return BadRecord("too_few_frames", text)


def too_narrow(video: MediaInfo) -> BadRecord:
    """Why a video of such a shape becomes no token."""
    size = f"{video.width}x{video.height}"
    text = f"a video of {size} pixels: one side is over 200 times the other"
    return BadRecord("aspect_ratio", text)


def sample_evenly(
    total: int, fps: float | None, *, num_frames: int | None, wanted_fps: float | None
) -> Frames:
    """Frames at equal distances: transformers 5.23, `video_utils.default_sample_indices_fn`.

    Args:
        total: frames of the video.
        fps: its frames per second.
        num_frames: how many to take; None goes by `wanted_fps`, and without both all are taken.
        wanted_fps: frames to take per second.

    Raises:
        BadRecord: ``too_few_frames``, or as `known_fps`.
    """
    if num_frames is None and wanted_fps is not None:
        num_frames = max(1, int(total / known_fps(fps) * wanted_fps))
    if num_frames is None:
        return np.arange(total)
    if num_frames > total:
        raise too_few_frames(total, num_frames)
    frames: Frames = np.arange(num_frames) * total // num_frames
    return frames


PATCH_SIZES = (14, 16)
"""Pixels per side of a patch in the vision towers that `patches_per_side` knows (SigLIP's)."""


def square_side(size: Mapping[str, Any] | None, name: str) -> int:
    """The side in pixels of a size that is a square, however it is spelled.

    Raises:
        SourceError: it is none.
    """
    size = size or {}
    sides = {int(size[key]) for key in ("height", "width", "shortest_edge") if size.get(key)}
    if len(sides) != 1 or (("height" in size) != ("width" in size)):
        raise SourceError(f"its image settings have {name} {dict(size)}: it must be a square")
    return sides.pop()


def longest_edge(size: Mapping[str, Any] | None, name: str) -> int:
    """The longest edge in pixels that a size allows.

    Raises:
        SourceError: the size is not given as one.
    """
    edge = (size or {}).get("longest_edge")
    if not edge or len(size or {}) != 1:
        raise SourceError(f"its image settings have {name} {size}: it must have longest_edge alone")
    return int(edge)


def needed(settings: Settings, name: str) -> int:
    """A whole number among the settings.

    Raises:
        SourceError: it is not there.
    """
    value = settings.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SourceError(
            f"its processor_config.json has {name} {value}: set it to the number that the model has"
        )
    return value


def patches_per_side(side: int, tokens: int) -> int:
    """Patches per side of a square image of `side` pixels that becomes `tokens` tokens.

    Processors that know tokens only leave the size of a patch to the model; it is the one of
    `PATCH_SIZES` of which whole squares of patches make a token: 16 for (512, 64), 14 for
    (896, 256).

    Raises:
        SourceError: not exactly one of them fits.
    """
    fits = []
    for patch in PATCH_SIZES:
        row = math.isqrt(tokens)
        if row * row == tokens and side // patch >= row and side // patch % row == 0:
            fits.append(side // patch)
    if len(set(fits)) != 1:
        raise SourceError(
            f"its images of {side} x {side} pixels become {tokens} tokens, which tells nothing of "
            f"how many patches they have: known are patches of {PATCH_SIZES} pixels a side"
        )
    return fits[0]


def best_resolution(
    heights: Int64s, widths: Int64s, resolutions: Sequence[Sequence[int]]
) -> tuple[Int64s, Int64s]:
    """Heights and widths ``[n]`` of the resolutions that keep most of each image.

    transformers 5.23, `image_processing_utils.select_best_resolution`, for n images at once.
    """
    most = np.zeros(len(heights), np.int64)
    least_waste = np.full(len(heights), np.iinfo(np.int64).max)
    best = np.zeros((2, len(heights)), np.int64)
    pixels = heights * widths
    for height, width in resolutions:
        scale = np.minimum(width / widths, height / heights)
        scaled = (widths * scale).astype(np.int64) * (heights * scale).astype(np.int64)
        kept = np.minimum(scaled, pixels)
        waste = width * height - kept
        better = (kept > most) | ((kept == most) & (waste < least_waste))
        most, least_waste = np.where(better, kept, most), np.where(better, waste, least_waste)
        best = np.where(better, np.array([[height], [width]]), best)
    return best[0], best[1]
