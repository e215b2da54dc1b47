"""How many tokens an image becomes: one class per family of vision towers.

A family is a `VisionFamily` and an entry in `FAMILIES`; nothing else in the package knows families
by name. Its settings are the checkpoint's, completed by the class defaults of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.errors import SourceError

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""


class VisionFamily(Protocol):
    """What counting and encoding ask of a family."""

    @property
    def media_tokens(self) -> dict[str, str]:
        """Kind of medium → the placeholder token that its tokens replace."""
        ...

    @property
    def mrope(self) -> bool:
        """Whether positions have three rows (time, height, width)."""
        ...

    @property
    def merge_size(self) -> int:
        """Patches per side that make one token."""
        ...

    def image_grids(self, sizes: ArrayLike) -> NDArray[np.int64]:
        """Pixels ``[n, 2]`` (height, width) → patches ``[n, 3]`` (t, h, w), 0 if impossible."""
        ...

    def num_tokens(self, grids: ArrayLike) -> NDArray[np.int64]:
        """Grids ``[n, 3]`` → tokens ``[n]``."""
        ...

    def text_overhead(self, roles: list[str], num_media: int) -> int:
        """Tokens that the family's usual template adds to the texts of such a conversation."""
        ...


def smart_resize(
    heights: ArrayLike, widths: ArrayLike, factor: int, min_pixels: int, max_pixels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths that Qwen's image processors resize to, in pixels.

    transformers 5.23, `models/qwen2_vl/image_processing_qwen2_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of the results' product.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive or the aspect ratio exceeds 200.
    """
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    valid = (height > 0) & (width > 0)
    h, w = np.where(valid, height, 1), np.where(valid, width, 1)
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))

    pixels = h_bar * w_bar
    shrink, grow = pixels > max_pixels, pixels < min_pixels
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = np.sqrt((h * w) / max_pixels)
        smaller = [_multiple(np.floor(side / beta / factor), factor, shrink) for side in (h, w)]
        beta = np.sqrt(min_pixels / (h * w))
        larger = [_multiple(np.ceil(side * beta / factor), factor, grow) for side in (h, w)]
    h_bar = np.where(shrink, np.maximum(factor, smaller[0]), np.where(grow, larger[0], h_bar))
    w_bar = np.where(shrink, np.maximum(factor, smaller[1]), np.where(grow, larger[1], w_bar))
    return np.where(valid, h_bar, 0), np.where(valid, w_bar, 0)


def _multiple(
    quotients: NDArray[np.float64], factor: int, chosen: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """`quotients` times `factor` where `chosen`; elsewhere they may be infinite: 0."""
    whole: NDArray[np.int64] = np.where(chosen, quotients, 0).astype(np.int64)
    return whole * factor


@dataclass(frozen=True, slots=True)
class QwenVision:
    """Qwen2-VL, 2.5-VL and 3-VL: images keep their shape, merge_size² patches make a token."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    family: str
    image_token: str = "<|image_pad|>"
    video_token: str = "<|video_pad|>"

    @property
    def media_tokens(self) -> dict[str, str]:
        return {"image": self.image_token, "video": self.video_token}

    @property
    def mrope(self) -> bool:
        return True

    def image_grids(self, sizes: ArrayLike) -> NDArray[np.int64]:
        sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
        factor = self.patch_size * self.merge_size
        height, width = smart_resize(
            sizes[:, 0], sizes[:, 1], factor, self.min_pixels, self.max_pixels
        )
        frames = (height > 0).astype(np.int64)
        return np.stack([frames, height // self.patch_size, width // self.patch_size], axis=1)

    def num_tokens(self, grids: ArrayLike) -> NDArray[np.int64]:
        patches: NDArray[np.int64] = np.asarray(grids, np.int64).reshape(-1, 3).prod(axis=1)
        return patches // self.merge_size**2

    def text_overhead(self, roles: list[str], num_media: int) -> int:
        # <|im_start|>role\n … <|im_end|>\n is 5 tokens; <|vision_start|> and <|vision_end|> are 2.
        total = 5 * len(roles) + 2 * num_media
        if self.family != "qwen3_vl" and roles[:1] != ["system"]:
            total += 11  # <|im_start|>system\nYou are a helpful assistant.<|im_end|>\n
        return total

    @classmethod
    def from_settings(cls, family: str, settings: Mapping[str, Any]) -> QwenVision:
        """From an image processor's complete settings.

        Raises:
            SourceError: they switch resizing off or lack the limits of an image's pixels.
        """
        size = settings["size"]
        if not settings["do_resize"]:
            raise SourceError("its image settings have do_resize false: set it to true")
        if not size.get("shortest_edge") or not size.get("longest_edge"):
            raise SourceError(
                "the image processor's size needs shortest_edge and longest_edge (pixels), "
                f"but it is {size}"
            )
        return cls(
            patch_size=int(settings["patch_size"]),
            temporal_patch_size=int(settings["temporal_patch_size"]),
            merge_size=int(settings["merge_size"]),
            min_pixels=int(size["shortest_edge"]),
            max_pixels=int(size["longest_edge"]),
            family=family,
        )


# Class defaults of transformers 5.23: Qwen2VLImageProcessor, Qwen2VLVideoProcessor and
# Qwen3VLVideoProcessor.
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_QWEN: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_QWEN2_IMAGE = {**_QWEN, **_CLIP, "patch_size": 14}
_QWEN2_IMAGE |= {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}
_VIDEO = {**_QWEN, "min_frames": 4, "max_frames": 768}
_QWEN2_VIDEO = {**_VIDEO, **_CLIP, "patch_size": 14, "max_video_tokens": 128_000}
_QWEN2_VIDEO |= {"do_sample_frames": False}
_QWEN2_VIDEO |= {"size": {"shortest_edge": 100_352, "longest_edge": 602_112}}
_QWEN3_VIDEO = {**_VIDEO, "patch_size": 16, "max_video_tokens": 768, "do_sample_frames": True}
_QWEN3_VIDEO |= {"fps": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_QWEN3_VIDEO |= {"size": {"shortest_edge": 131_072, "longest_edge": 786_432}}


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise and complete a family's settings."""

    name: str
    processor_class: str
    image_defaults: Mapping[str, Any]
    video_defaults: Mapping[str, Any]

    def build(self, image_settings: Mapping[str, Any]) -> VisionFamily:
        """The family with these complete settings."""
        return QwenVision.from_settings(self.name, image_settings)


FAMILIES = {
    family.processor_class: family
    for family in (
        Family("qwen2_vl", "Qwen2VLProcessor", _QWEN2_IMAGE, _QWEN2_VIDEO),
        Family("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN2_IMAGE, _QWEN2_VIDEO),
        Family("qwen3_vl", "Qwen3VLProcessor", _QWEN2_IMAGE, _QWEN3_VIDEO),
    )
}


def find_family(processor_class: str | None, image_settings: Mapping[str, Any]) -> Family | None:
    """The family of a processor, or None if it is not one we know.

    Checkpoints may leave `processor_class` out; then the image processor's class and its patch size
    tell them apart (Qwen2-VL and Qwen2.5-VL count images alike).
    """
    if processor_class is not None:
        return FAMILIES.get(processor_class)
    kind = str(image_settings.get("image_processor_type") or "")
    if kind.removesuffix("Fast").removesuffix("Pil") != "Qwen2VLImageProcessor":
        return None
    patch_size = image_settings.get("patch_size", 14)
    return FAMILIES["Qwen3VLProcessor" if patch_size == 16 else "Qwen2_5_VLProcessor"]
