"""The questions that counting and encoding ask of a processor's media; a family answers them.

A family is one file in this folder: a formula for images, one for videos where it takes them, a
table of its classes' defaults, and one line in `families.FAMILIES`. Nothing else knows families by
name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import BadRecord, SourceError
from packidx.processor.fingerprint import complete_settings
from packidx.records.conversation import MediaInfo

Settings = Mapping[str, Any]
"""Of an image processor, a video processor or a processor itself, by name."""
Frames = Int64s
"""Numbers of frames."""

UNKNOWN_FPS = 24.0
"""Frames per second that transformers' processors assume if the rate is not known."""
MAX_FRAMES = 10_000_000
"""92 hours at 30 frames per second; a header or record that claims more is wrong."""
MIN_FPS = 0.001
"""Less is not a frame rate: durations stay finite, and timestamps those of a calendar."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The text that a processor puts in the place of a medium's placeholder, before tokenizing.

    Runs of feature tokens (the tokens whose embeddings the vision tower's output replaces) are
    written once each; `runs` says how often each is repeated.
    """

    text: str
    """``"<img><IMG_CONTEXT></img>"``; for Qwen3-VL's video one part per frame."""
    runs: tuple[int, ...]
    """Repetitions of each feature token in `text`, in order; at least 1 each."""


@dataclass(frozen=True, slots=True)
class MediaCounts:
    """The tokens and patches of n media of one kind."""

    grids: Int64s
    """``[n, 3]`` (t, h, w) in patches before merging. Each of the t frames or tiles of h * w
    patches is one attention span of the vision tower. 0 where impossible."""
    tokens: Int64s
    """``[n]`` feature tokens; 0 where impossible."""
    expansions: Sequence[Expansion | None] | None = None
    """One per medium; None, in all or in one place, where the feature token alone is repeated."""
    errors: Mapping[int, BadRecord] = field(default_factory=dict)
    """Reasons why media cannot be used, by the medium's number."""

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


class MediaModel(ABC):
    """A processor's treatment of media: the arithmetic of a family, or tokens of blank media."""

    placeholders: Mapping[str, str]
    """Kind of medium (``'image'``, ``'video'``, ``'audio'``) → what the chat template writes."""
    feature_tokens: Mapping[str, str]
    """Kind of medium → the token that its features replace."""
    written_tokens: Mapping[str, str]
    """`placeholders`, and what else must not stand in a text."""
    settings: Mapping[str, str] | None = None
    """Facts that the fingerprint must hold besides settings and tokenizer."""
    unpredictable: Collection[str] = ()
    """Words of kinds (`packidx.processor.kinds`) whose samples are built to be counted."""
    one_kind_per_sample: bool = False
    """True if the pixels of a sample's videos take the place of those of its images."""
    same_num_frames: bool = False
    """True if the videos of a sample are one tensor, so that as many frames of each are used."""
    merge_size: int | None = None
    """Patches per side that make one token, where positions have three rows (time, height, width)
    and we make them; None if they have one, or the model makes them."""

    @abstractmethod
    def expand(
        self, kind: str, media: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """Return what media of one kind become; where one cannot be used, zeros and an error.

        Args:
            kind: ``'image'``, ``'video'`` or ``'audio'``.
            media: what is known of them.
            samples: ``[n]`` the number of the sample that each is in, for processors that treat
                several otherwise than one; None if each has its own.
        """


ImageCounts = tuple[
    tuple[Int64s | int, Int64s | int, Int64s | int],
    Int64s | int,
    Sequence[Expansion | None] | None,
]
"""Grids (t, h, w), tokens and texts of n images, as in `MediaCounts`; a number is that of all."""
VideoCount = tuple[tuple[int, int, int], int, Expansion | None]
"""Grid, tokens and text of a video, as in `MediaCounts`."""


@dataclass(kw_only=True)
class FamilyMedia(MediaModel):
    """A processor of a family of ours. All callables can be pickled."""

    name: str
    """The name of the family."""
    placeholders: Mapping[str, str]
    feature: str | None = None
    """The token that the features of all media replace; None if it is their placeholder."""
    images: Callable[[Int64s, Int64s, Int64s], ImageCounts]
    """(heights, widths, samples), in pixels, of images of at least one pixel, each int64 ``[n]`` →
    what they become; 0 tokens where a shape is impossible."""
    video: Callable[[MediaInfo, Frames], VideoCount] | None = None
    """(a video, the frames used) → what it becomes; may raise BadRecord. None: it takes none."""
    sample: Callable[[int, float | None], Frames] | None = None
    """(number of frames, frames per second) → the frames taken; None takes all."""
    limits: Any = None
    """`PixelLimits` of images, where a record may ask for other ones."""
    sample_as: Callable[[Settings], Callable[[int, float | None], Frames] | None] | None = None
    """Options of a video (``fps``, ``nframes`` …) → `sample` with these in place of the settings;
    None if a record may not ask for other frames."""
    together: Callable[[MediaCounts, Int64s], MediaCounts] | None = None
    """(videos, their samples) → the same where what is beside a video changes its text."""
    model_inputs: tuple[str, ...] = ("pixel_values",)
    """Names of the image and video processors' outputs that the model takes."""
    image_options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the processor passes to its image processor in place of that one's own."""
    pixels_in_order: bool = False
    """True if the model takes the pixels of images and videos as one ``pixel_values``, in order of
    appearance."""
    one_kind_per_sample: bool = False
    same_num_frames: bool = False
    merge_size: int | None = None
    rope_model: str | None = None
    """transformers' class whose `get_rope_index` gives videos other positions in one release than
    in another; None if all releases agree."""

    def __post_init__(self) -> None:
        self.written_tokens = self.feature_tokens = self.placeholders
        if self.feature is not None:
            self.feature_tokens = dict.fromkeys(self.placeholders, self.feature)

    def expand(
        self, kind: str, media: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """See the base."""
        if kind == "image":
            return self.count_images([(info.height, info.width) for info in media], samples)
        if kind == "video" and self.video is not None:
            return self.count_videos(media, samples)
        error = BadRecord("unsupported_media", f"{self.name} takes no {kind}")
        errors = dict.fromkeys(range(len(media)), error)
        zeros = np.zeros((len(media), 3), np.int64)
        return MediaCounts(zeros, zeros[:, 0], errors=errors)

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        """Return `expand` of images, in one vectorised pass.

        Args:
            sizes: pixels ``[n, 2]`` (height, width), after orientation.
            samples: as for `expand`.
        """
        pixels = np.asarray(sizes, np.int64).reshape(-1, 2)
        owners = np.arange(len(pixels)) if samples is None else np.asarray(samples, np.int64)
        is_empty = pixels.min(axis=1) <= 0
        heights, widths = np.where(is_empty, 1, pixels.T)
        grid, tokens, expansions = self.images(heights, widths, owners)
        tokens = np.where(is_empty, 0, tokens)
        grids = np.stack(np.broadcast_arrays(*grid, tokens)[:3], axis=1)
        unusable = np.flatnonzero(tokens == 0)
        grids[unusable] = 0
        errors = {number: unusable_size(*pixels[number].tolist()) for number in unusable.tolist()}
        return MediaCounts(grids, tokens, expansions, errors)

    def count_videos(
        self, videos: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """Return `expand` of videos, where the family takes them."""
        assert self.video is not None  # see `expand`
        grids = np.zeros((len(videos), 3), np.int64)
        tokens = np.zeros(len(videos), np.int64)
        expansions: list[Expansion | None] = [None] * len(videos)
        errors: dict[int, BadRecord] = {}
        for number, video in enumerate(videos):
            try:
                counted = self.video(video, self.sample_frames(video))
                grids[number], tokens[number], expansions[number] = counted
            except BadRecord as error:
                errors[number] = error
        counts = MediaCounts(grids, tokens, expansions, errors)
        if self.together is None:
            return counts
        owners = np.arange(len(videos)) if samples is None else np.asarray(samples, np.int64)
        return self.together(counts, owners)

    def sample_frames(self, video: MediaInfo) -> Frames:
        """``[f]`` numbers of the frames that the processor takes of a video.

        Frames that the record names are taken as they are, extracted ones are all taken; else
        `sample` chooses, and without it all are taken.

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
        elif video.extracted or self.sample is None:
            frames = np.arange(video.num_frames, dtype=np.int64)
        else:
            frames = self.sample(video.num_frames, video.fps)
        if not len(frames):
            raise too_few_frames(video.num_frames)
        return frames


@dataclass(frozen=True, slots=True)
class Family:
    """A family: rules to recognise it and to complete its settings."""

    name: str
    """``qwen2_5_vl``: transformers' name of the model."""
    processor_class: str
    """``Qwen2_5_VLProcessor``."""
    image_defaults: Mapping[str, Any]
    """Class defaults of the image processor, for what a checkpoint leaves out."""
    video_defaults: Mapping[str, Any]
    """Class defaults of the video processor; empty where there is none."""
    build: Callable[[Settings, Settings, Settings], FamilyMedia]
    """(image settings, video settings, the processor's own settings) → its media."""
    own_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The processor's own settings that change tokens, with their class defaults; None if a
    checkpoint must say it."""
    older_names: tuple[str, ...] = ()
    """``images``, ``videos`` or both: they take ``min_pixels`` and ``max_pixels``, too."""

    def read(
        self, image: Settings, video: Settings | None, own: Settings
    ) -> tuple[FamilyMedia, dict[str, Any], dict[str, Any] | None, dict[str, Any]]:
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
"""`FamilyMedia.model_inputs` where images and videos keep their shape."""


def unusable_size(height: int, width: int, what: str = "an image") -> BadRecord:
    """Return why a medium of this size, in pixels, becomes no token."""
    text = f"{what} of {width}x{height} pixels"
    if height <= 0 or width <= 0:
        return BadRecord("broken_media", text)
    ratio = max(height, width) / min(height, width)
    text += f": one side is {ratio:,.0f} times the other, more than its processor takes"
    return BadRecord("aspect_ratio", text)


def frame_seconds(frames: Frames, fps: float | None) -> list[float]:
    """Seconds at which `frames` are shown (transformers 5.23, `VideoMetadata.timestamps`); None is
    `UNKNOWN_FPS`. Raises as `known_fps`."""
    seconds: list[float] = (frames / (UNKNOWN_FPS if fps is None else known_fps(fps))).tolist()
    return seconds


def known_fps(fps: float | None) -> float:
    """Return the frame rate, where frames are sampled by time or have timestamps; raise a BadRecord
    (``unknown_fps``) if it is None, infinite or below `MIN_FPS`."""
    if fps is None or not MIN_FPS <= fps < math.inf:
        text = f"a video's frame rate is {fps}, but its processor goes by time: state its fps"
        raise BadRecord("unknown_fps", text)
    return fps


def too_few_frames(num_frames: int, needed: int | None = None) -> BadRecord:
    """Reason for a video that is too short for its processor."""
    least = "more" if needed is None else str(needed)
    text = f"a video of {num_frames} frames, but its processor needs {least}"
    return BadRecord("too_few_frames", text)


# -- target sizes of images, vectorised ------------------------------------------------------------

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""


def smart_resize(
    heights: ArrayLike,
    widths: ArrayLike,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    *,
    frames: ArrayLike | None = None,
    temporal_factor: int = 1,
) -> tuple[Int64s, Int64s]:
    """Heights and widths that Qwen's and GLM's processors resize images or videos to, in pixels.

    transformers 5.23, `smart_resize` of `models/qwen2_vl/image_processing_qwen2_vl.py` and, with
    `frames`, of `models/qwen3_vl/video_processing_qwen3_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of height * width, of all frames together.
        frames: of each video, ``[n]``; None for images. Frames with a side below `factor` are
            enlarged first.
        temporal_factor: frames are counted in its multiples.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive, the aspect ratio exceeds 200, or
        there are fewer than `temporal_factor` frames.
    """
    sides = [np.atleast_1d(np.asarray(side, np.int64)) for side in (heights, widths)]
    number = np.broadcast_to(np.asarray(1 if frames is None else frames, np.int64), sides[0].shape)
    valid = (sides[0] > 0) & (sides[1] > 0) & (number >= temporal_factor)
    f = np.where(valid, number, temporal_factor)
    h, w = (np.where(valid, side, factor) for side in sides)
    if frames is not None:
        scale = np.maximum(factor / h, factor / w)
        small = (h < factor) | (w < factor)
        h, w = (np.where(small, (side * scale).astype(np.int64), side) for side in (h, w))
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))
    pixels = np.rint(f / temporal_factor).astype(np.int64) * temporal_factor * h_bar * w_bar
    shrink, grow = pixels > max_pixels, (pixels < min_pixels) & (pixels <= max_pixels)
    beta = np.sqrt(f[shrink] * h[shrink] * w[shrink] / max_pixels)
    for bar, side in ((h_bar, h), (w_bar, w)):
        floors = np.floor(side[shrink] / beta / factor).astype(np.int64)
        bar[shrink] = np.maximum(factor, floors * factor)
    beta = np.sqrt(min_pixels / (f[grow] * h[grow] * w[grow]))
    for bar, side in ((h_bar, h), (w_bar, w)):
        bar[grow] = np.ceil(side[grow] * beta / factor).astype(np.int64) * factor
    return h_bar * valid, w_bar * valid


def must_resize(settings: Settings, kind: str = "image") -> None:
    """Raise a SourceError if resizing is switched off."""
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

    @classmethod
    def of(cls, settings: Settings, kind: str) -> PixelLimits:
        """Return the limits of complete settings.

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
        patches = (settings[n] for n in ("patch_size", "temporal_patch_size", "merge_size"))
        return cls(*map(int, (*patches, size["shortest_edge"], size["longest_edge"])))

    @property
    def factor(self) -> int:
        """Pixels per side that make one token."""
        return self.patch_size * self.merge_size

    def counts(self, height: Any, width: Any) -> tuple[tuple[int, Any, Any], Any]:
        """Return the grid (t, h, w) of an image or step of these sides in pixels, and its tokens;
        numbers, or arrays of several."""
        grid = 1, height // self.patch_size, width // self.patch_size
        return grid, (height // self.factor) * (width // self.factor)

    def resized(
        self,
        heights: ArrayLike,
        widths: ArrayLike,
        frames: int | None = None,
        max_pixels: int | None = None,
    ) -> tuple[Int64s, Int64s]:
        """`smart_resize` by these limits, or with another `max_pixels`."""
        return smart_resize(
            heights,
            widths,
            self.factor,
            self.min_pixels,
            self.max_pixels if max_pixels is None else max_pixels,
            frames=frames,
            temporal_factor=1 if frames is None else self.temporal_patch_size,
        )


PATCH_SIZES = (14, 16)
"""Pixels per side of a patch in the vision towers that `patches_per_side` knows (SigLIP's)."""


def square_side(size: Mapping[str, Any] | None, name: str) -> int:
    """Return the side in pixels of a square size, however it is spelled; raise a SourceError if it
    is none."""
    size = size or {}
    sides = {int(size[key]) for key in ("height", "width", "shortest_edge") if size.get(key)}
    if len(sides) != 1 or (("height" in size) != ("width" in size)):
        raise SourceError(f"its image settings have {name} {dict(size)}: it must be a square")
    return sides.pop()


def longest_edge(size: Mapping[str, Any] | None, name: str) -> int:
    """Return the longest edge in pixels that a size allows; raise a SourceError if it states other
    edges, too."""
    edge = (size or {}).get("longest_edge")
    if not edge or len(size or {}) != 1:
        raise SourceError(f"its image settings have {name} {size}: it must have longest_edge alone")
    return int(edge)


def read_positive_int(settings: Settings, name: str) -> int:
    """Return a positive integer among the settings; raise a SourceError if it is missing."""
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
