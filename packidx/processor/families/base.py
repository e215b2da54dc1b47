"""What counting and encoding ask of a family of vision-language processors.

A family is one file in this folder with a class that is a `VisionFamily`, and one line in
`families.FAMILIES`; nothing else in the package knows families by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import BadRecord, SourceError
from packidx.processor.fingerprint import complete_settings
from packidx.records.conversation import MediaInfo

Settings = Mapping[str, Any]
"""Of an image processor, a video processor or a processor itself, by name."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The text that a processor puts in the place of a medium's placeholder, before tokenizing.

    Runs of feature tokens (the tokens whose embeddings the vision tower's output replaces) are
    written once each; `runs` says how often each is repeated.
    """

    text: str
    """``"<img><IMG_CONTEXT></img>"``; for Qwen3-VL's video one part per frame."""
    runs: tuple[int, ...]
    """How often each feature token in `text` is repeated, in order; at least 1 each."""


@dataclass(frozen=True, slots=True)
class MediaCounts:
    """What n media of one kind become."""

    grids: Int64s
    """``[n, 3]`` (t, h, w) in patches before merging. Each of the t frames or tiles of h * w
    patches is one attention span of the vision tower. 0 where impossible."""
    tokens: Int64s
    """``[n]`` feature tokens; 0 where impossible."""
    expansions: Sequence[Expansion | None] | None = None
    """One per medium; None, in all or in one place, where the feature token alone is repeated."""
    errors: Mapping[int, BadRecord] = field(default_factory=dict)
    """Why a medium cannot be used, by its number."""

    @property
    def patches(self) -> Int64s:
        """``[n]`` patches before merging."""
        return self.grids[:, 0] * self.grids[:, 1] * self.grids[:, 2]

    @property
    def cost(self) -> Int64s:
        """``[n]`` sum of patches² per attention span."""
        frame = self.grids[:, 1] * self.grids[:, 2]
        cost: Int64s = self.grids[:, 0] * frame**2
        return cost


ImageCounts = tuple[
    tuple[Int64s | int, Int64s | int, Int64s | int],
    Int64s | int,
    Sequence[Expansion | None] | None,
]
"""Grids (t, h, w), tokens and texts of n images, as in `MediaCounts`; a number is that of all."""
VideoCount = tuple[tuple[int, int, int], int, Expansion | None]
"""Grid, tokens and text of a video, as in `MediaCounts`."""


class VisionFamily(ABC):
    """One processor's way to count media; built from its complete settings.

    What has a body here holds for most: an image's placeholder is its feature token, positions have
    one row, videos are not taken.
    """

    __slots__ = ()

    pixels_in_order: ClassVar[bool] = False
    """Whether the model takes the pixels of images and videos as one ``pixel_values``, in order of
    appearance."""
    one_kind_per_sample: ClassVar[bool] = False
    """Whether the pixels of a sample's videos take the place of those of its images."""

    same_num_frames: ClassVar[bool] = False
    """Whether the videos of a sample are one tensor, so that as many frames of each are used."""

    @property
    @abstractmethod
    def placeholders(self) -> Mapping[str, str]:
        """Kind of medium (``'image'``, ``'video'``) → what the chat template writes for it."""

    @property
    def feature_tokens(self) -> Mapping[str, str]:
        """Kind of medium → the token that its features replace."""
        return self.placeholders

    @property
    def written_tokens(self) -> Mapping[str, str]:
        """`placeholders`, and what else must not stand in a text."""
        return self.placeholders

    @property
    def around_text(self) -> tuple[str, str]:
        """What the processor puts before and after a rendered text."""
        return "", ""

    @property
    def mrope_merge_size(self) -> int | None:
        """Patches per side that make one token, where positions have three rows (time, height,
        width); None where they have one."""
        return None

    @property
    def rope_model(self) -> str | None:
        """transformers' class whose `get_rope_index` gives videos other positions in one release
        than in another; None where all releases agree."""
        return None

    @property
    def counted_by(self) -> str | None:
        """Whose arithmetic it is, where that is not exact; None where counts are what is built."""
        return None

    @property
    def model_inputs(self) -> tuple[str, ...]:
        """Names of the image and video processors' outputs that the model takes."""
        return ("pixel_values",)

    @property
    def image_options(self) -> Mapping[str, Any]:
        """What the processor passes to its image processor, whatever that one's settings say."""
        return {}

    def count(
        self, kind: str, media: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """Return what media of one kind become; where one cannot be used, zeros and an error.

        Args:
            kind: ``'image'``, ``'video'`` or ``'audio'``, which a family by hand does not take.
            media: what is known of them.
            samples: ``[n]`` the number of the sample that each is in, for processors that treat
                several otherwise than one; None where each has its own.
        """
        if kind == "image":
            return self.count_images([(info.height, info.width) for info in media], samples)
        if kind == "video":
            return self.count_videos(media, samples)
        num = len(media)
        error = BadRecord("unsupported_media", "its processor takes no audio")
        errors = dict.fromkeys(range(num), error)
        return MediaCounts(np.zeros((num, 3), np.int64), np.zeros(num, np.int64), errors=errors)

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        """Return `count` of images, in one vectorised pass.

        Args:
            sizes: pixels ``[n, 2]`` (height, width), after orientation.
            samples: as for `count`.
        """
        pixels = np.asarray(sizes, np.int64).reshape(-1, 2)
        owners = np.arange(len(pixels)) if samples is None else np.asarray(samples, np.int64)
        is_empty = pixels.min(axis=1) <= 0
        heights, widths = np.where(is_empty, 1, pixels.T)
        grid, tokens, expansions = self._count_images(heights, widths, owners)
        tokens = np.where(is_empty, 0, tokens)
        grids = np.stack(np.broadcast_arrays(*grid, tokens)[:3], axis=1)
        unusable = np.flatnonzero(tokens == 0)
        grids[unusable] = 0
        errors = {number: unusable_size(*pixels[number].tolist()) for number in unusable.tolist()}
        return MediaCounts(grids, tokens, expansions, errors)

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        """Return what images of at least one pixel become; 0 tokens where a shape is impossible.

        Args:
            heights, widths: pixels ``[n]``.
            samples: ``[n]``, as for `count`.
        """
        raise NotImplementedError

    def count_videos(
        self, videos: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """Return `count` of videos."""
        grids = np.zeros((len(videos), 3), np.int64)
        tokens = np.zeros(len(videos), np.int64)
        expansions: list[Expansion | None] = [None] * len(videos)
        errors: dict[int, BadRecord] = {}
        for number, video in enumerate(videos):
            try:
                grids[number], tokens[number], expansions[number] = self._count_video(video)
            except BadRecord as error:
                errors[number] = error
        return MediaCounts(grids, tokens, expansions, errors)

    def _count_video(self, video: MediaInfo) -> VideoCount:
        """Return what one video becomes.

        Raises:
            BadRecord: it cannot be used; a family without video uses none.
        """
        raise no_video("its processor")

    def sample_frames(self, video: MediaInfo) -> Int64s:
        """``[f]`` numbers of the frames that the processor takes, as it would be given them."""
        return np.arange(video.num_frames)


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise a family and to complete its settings."""

    name: str
    """``qwen2_5_vl``: transformers' name of the model."""
    processor_class: str
    """``Qwen2_5_VLProcessor``."""
    image_defaults: Mapping[str, Any]
    """Class defaults of the image processor, for what a checkpoint leaves out."""
    video_defaults: Mapping[str, Any]
    """Class defaults of the video processor; empty where there is none."""
    build: Callable[[Settings, Settings, Settings], VisionFamily]
    """(image settings, video settings, the processor's own settings) → the family."""
    own_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The processor's own settings that change tokens, with their class defaults; None where a
    checkpoint must say it."""
    older_names: tuple[str, ...] = ()
    """Which of ``images`` and ``videos`` take ``min_pixels`` and ``max_pixels``, too."""

    def read(
        self, image: Settings, video: Settings | None, own: Settings
    ) -> tuple[VisionFamily, dict[str, Any], dict[str, Any] | None, dict[str, Any]]:
        """Return what is built of a checkpoint's settings, and these, completed.

        Raises:
            PackidxError: the family does not count what they ask for.
        """
        own = self.complete({name: own.get(name) for name in self.own_defaults}, self.own_defaults)
        image = self.complete(image, self.image_defaults)
        if video is not None:
            video = self.complete(video, self.video_defaults) if self.video_defaults else None
        return self.build(image, video or {}, own), image, video, own

    def complete(self, settings: Settings, defaults: Settings) -> dict[str, Any]:
        """`complete_settings` of one of its parts; what its class has is in the fingerprint.

        Raises:
            SourceError: a size is a number alone, which each class reads in its own way, or images
                are cut to none.
        """
        part = "videos" if defaults is self.video_defaults else "images"
        complete = complete_settings(settings, defaults, tuple(defaults), part in self.older_names)
        for name in ("size", "crop_size"):
            if not isinstance(complete.get(name, {}), Mapping):
                raise SourceError(f"its {name} is {complete[name]}: say which edge has that")
        if complete.get("do_center_crop") and not complete.get("crop_size"):
            raise SourceError("it has do_center_crop, but no crop_size: set both or none")
        return complete


CLIP_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""What the image and video processor classes of most families have in common."""
SIGLIP_DEFAULTS = {**CLIP_DEFAULTS, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


GRID_INPUTS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
"""`VisionFamily.model_inputs` where images and videos keep their shape."""


def no_video(name: str) -> BadRecord:
    """Why a family that takes images only cannot use a video."""
    return BadRecord("unsupported_media", f"{name} takes no video")


def no_pixels(height: int, width: int) -> BadRecord:
    """Why an image without any pixel cannot be used."""
    return BadRecord("broken_media", f"an image of {width}x{height} pixels")


def unusable_size(height: int, width: int) -> BadRecord:
    """Return why an image of this size, in pixels, becomes no token."""
    if height <= 0 or width <= 0:
        return no_pixels(height, width)
    ratio = max(height, width) / min(height, width)
    text = f"one side is {ratio:,.0f} times the other, more than its processor takes"
    return BadRecord("aspect_ratio", f"an image of {width}x{height} pixels: {text}")
