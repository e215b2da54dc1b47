"""A record's media, opened as a transformers processor takes them, and the tensors of a family's.

Images stay what they are, or become RGB. Sound becomes one channel at the processor's rate. A video
becomes frames and what is known of it (`VideoMetadata`), from which processors sample frames and
write times; its own sound is left out, whatever the processor could do with it. A family's image
and video processors are called each alone, which is quick and needs no torchvision; what they make
must be what was counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packidx.encode.imports import allow_cuda_torchvision, import_torch
from packidx.errors import BadRecord, MismatchError, PackidxError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import MediaColumns
from packidx.processor.families.base import FamilyMedia
from packidx.processor.kinds import KINDS
from packidx.processor.requests import apply_requests
from packidx.records.conversation import Conversation, Media, MediaInfo, map_media
from packidx.records.media.clips import Audio, Samples, Video
from packidx.records.media.images import open_image
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE
from packidx.software import installed_version

if TYPE_CHECKING:
    import torch

_NO_RATE = 16000
"""What transformers takes where a processor states no sampling rate."""


class NotBuilt(PackidxError):
    """Transformers builds no sample of a conversation, or not the one that was counted."""


def info_of(medium: Media) -> MediaInfo:
    """Return what decides a medium's tokens: an image's size, a video's frames, a sound's
    length."""
    if medium.kind != "image":
        return media_info(medium, ANYWHERE)
    width, height = opened_image(medium).size
    return MediaInfo(height, width)


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


def refuse_unsupported(conversation: Conversation, files: ProcessorFiles) -> None:
    """Raise a BadRecord (``unsupported_media``) if the processor cannot encode a kind of media."""
    for medium in conversation.media:
        if files.vision is None or medium.kind not in files.vision.placeholders:
            raise BadRecord("unsupported_media", f"{files.name} cannot encode {medium.kind}")


def as_requested(conversation: Conversation, files: ProcessorFiles) -> Conversation:
    """Return a conversation with media that are as their options ask for (`processor.requests`).

    Raises:
        BadRecord: ``unsupported_media_option``, or a medium cannot be opened.
    """

    def apply_to_medium(medium: Media) -> Media:
        if not medium.requests:
            return medium
        info = info_of(medium)
        asked = apply_requests(medium, info, files)
        if asked is None or asked == info:
            return medium
        if medium.kind != "image":
            stated = {**medium.stated, "frame_indices": asked.frame_indices}
            return replace(medium, stated=stated, requests={})
        image, size = opened_image(medium), (asked.width, asked.height)
        with broken_images():
            image = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        return Media("image", image)

    return map_media(conversation, apply_to_medium)


@contextlib.contextmanager
def broken_images() -> Iterator[None]:
    """Raise a BadRecord (``broken_media``) for what PIL raises while it decodes an image."""
    try:
        yield
    except (OSError, SyntaxError, ValueError) as cause:
        raise BadRecord("broken_media", f"an image cannot be decoded: {cause}") from cause


Opened = tuple[Conversation, dict[str, Any]]
"""A conversation whose ``Media.ref`` are what a processor takes, and the options of its call."""


def open_media(
    conversation: Conversation,
    take: Callable[[MediaInfo], np.ndarray],
    processor: Any,
    *,
    every_frame: bool = False,
) -> Opened:
    """Return a conversation's media as a processor takes them.

    Args:
        take: a video that says nothing of its frames → the numbers of those that are used.
        processor: whose parts say how they take images and sound.
        every_frame: give all frames of such videos, which the processor is to sample by itself, as
            it does with files; where another of the conversation says which are used, as `take`.

    Raises:
        BadRecord: a medium cannot be decoded, or is not what the record says.
        MissingExtraError: a package is missing.
    """
    media, refs, metadata = conversation.media, list[Any](), list[Any]()
    infos = [info_of(medium) if medium.kind == "video" else None for medium in media]
    samples = every_frame and not any(
        info and (info.extracted or info.frame_indices is not None) for info in infos
    )
    for medium, info in zip(media, infos, strict=True):
        if info is not None:
            frames = np.arange(info.num_frames)
            if info.frame_indices is not None:
                frames = np.asarray(info.frame_indices)
            elif not (info.extracted or samples):
                frames = take(info)
            refs.append(_read_frames(medium, info, frames))
            metadata.append(metadata_of(info, frames))
        elif medium.kind == "audio":
            sound = medium.ref if isinstance(medium.ref, Audio) else Audio(medium.ref)
            refs.append(sound.waveform(sampling_rate_of(processor)))
        else:
            refs.append(decoded_image(medium, processor))
    options: dict[str, Any] = {"video_metadata": metadata} if metadata else {}
    if metadata and not samples:
        options["do_sample_frames"] = False
    left = iter(refs)
    return map_media(conversation, lambda each: replace(each, ref=next(left))), options


def decoded_image(medium: Media, processor: Any) -> Any:
    """An image with its pixels decoded; in RGB, as transformers' `load_image` opens files, where
    the image processor does not see to that.

    Raises:
        BadRecord: ``broken_media``, or as `opened_image`.
    """
    image = opened_image(medium)
    with broken_images():
        image.load()
    part = getattr(processor, "image_processor", None)
    if getattr(part, "do_convert_rgb", None) or getattr(image, "mode", "RGB") == "RGB":
        return image
    return image.convert("RGB")


def _read_frames(medium: Media, info: MediaInfo, numbers: np.ndarray) -> Any:
    """Read frames as uint8 ``[n, 3, height, width]``, channels first, so that no size is mistaken
    for the number of channels; raise a BadRecord if they are not what the record says."""
    video = medium.ref if isinstance(medium.ref, Video) else Video(medium.ref)
    if isinstance(video, BlankVideo):
        return video.tensor(len(numbers))
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


def sampling_rate_of(processor: Any) -> int:
    """Samples per second that a processor takes of sound."""
    part = getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))
    return int(getattr(part, "sampling_rate", None) or _NO_RATE)


# -- media of a given shape, to try a processor with -----------------------------------------------


def blank_medium(kind: str, info: MediaInfo, *, noise: bool = False) -> Media:
    """Return a medium of a shape: black pixels or silence, or noise."""
    if kind == "audio":
        return Media(kind, BlankSound(info, noise=noise))
    if kind == "video":
        return Media(kind, BlankVideo(info, noise=noise))
    shape = info.height, info.width, 3
    return Media(kind, Image.fromarray(_make_noise(shape) if noise else np.zeros(shape, np.uint8)))


def _make_noise(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


class BlankVideo(Video):
    """A video of black frames, whose tensor takes the memory of one, or of noise."""

    def __init__(self, info: MediaInfo, *, noise: bool = False) -> None:
        super().__init__((), "a blank video")
        self.info, self._noise = info, noise

    def tensor(self, num: int) -> Any:
        """Return so many frames, uint8 ``[num, 3, height, width]``."""
        torch, sides = import_torch(), (3, self.info.height, self.info.width)
        if self._noise:
            return torch.from_numpy(_make_noise((num, *sides)))
        return torch.zeros((1, *sides), dtype=torch.uint8).expand(num, -1, -1, -1)


class BlankSound(Audio):
    """A sound of zeros, or of noise."""

    def __init__(self, info: MediaInfo, *, noise: bool = False) -> None:
        super().__init__(b"", "a blank sound")
        self.info, self._noise = info, noise

    def waveform(self, sampling_rate: int) -> Samples:
        """See the base."""
        num = self.info.num_samples
        wave = _make_noise((num,)) / np.float32(1280) if self._noise else np.zeros(num, np.float32)
        return np.asarray(wave, np.float32)


# -- tensors of a family's media -------------------------------------------------------------------

_ADVICE = (
    "use the release of transformers that they were counted with, or a newer one, leave the record"
    " out, or pass your own encode(record) callable"
)

MakePatches = Callable[[Sequence[Any], "NDArray[np.int64]"], "dict[str, torch.Tensor] | None"]
"""(images, their grids as counted) → what a family's image processor makes of them; None if that
is left to the processor."""


def media_tensors(
    files: ProcessorFiles,
    conversation: Conversation,
    media: MediaColumns,
    load: Callable[[str], Any],
    patches: MakePatches,
) -> dict[str, torch.Tensor]:
    """Return what a family's model takes of one sample besides token ids, labels and positions.

    Args:
        conversation: its media are opened, or bytes or paths.
        media: as they were counted.
        load: ``'image'`` or ``'video'`` → the processor of these.
        patches: makes the patches of images in their processor's place.

    Raises:
        BadRecord: a medium cannot be decoded.
        MismatchError: transformers makes other patches.
        MissingExtraError, SourceError: the processor cannot be loaded.
    """
    vision = files.vision
    assert isinstance(vision, FamilyMedia)  # checked by the encoder
    kinds = [kind for kind in KINDS if any(kind == medium.kind for medium in conversation.media)]
    parts = {kind: load(kind) for kind in kinds}
    whole = SimpleNamespace(image_processor=parts.get("image"))
    given, options = open_media(conversation, vision.sample_frames, whole)
    metadata = iter(options.get("video_metadata", ()))
    each = [(medium, next(metadata) if medium.kind == "video" else None) for medium in given.media]
    tensors: dict[str, torch.Tensor] = {}
    try:
        if vision.pixels_in_order:
            made = [
                _process_media(vision, parts[one[0].kind], [one])["pixel_values"] for one in each
            ]
            tensors["pixel_values"] = import_torch().cat(made)
            tiles, counted = len(tensors["pixel_values"]), int(media.grid[:, 0].sum())
            if tiles != counted:
                raise NotBuilt(f"makes {tiles} tiles of this sample, and {counted} were counted")
        for kind in () if vision.pixels_in_order else kinds:
            own = [one for one in each if one[0].kind == kind]
            features: Mapping[str, Any] | None = None
            grids = media.grid[media.kind == KINDS.index(kind)]
            if kind == "image":
                features = patches([medium.ref for medium, _ in own], grids)
            features = _process_media(vision, parts[kind], own) if features is None else features
            tensors |= {name: features[name] for name in vision.model_inputs if name in features}
            # A release that does not know a setting of the processor leaves it out without a word.
            real = tensors.get(f"{kind}_grid_thw")
            if real is not None and real.tolist() != grids.tolist():
                stated = f"{real.tolist()} (time, height, width)"
                raise NotBuilt(
                    f"makes {kind}s of grids {stated}, and {grids.tolist()} were counted"
                )
    except NotBuilt as error:
        name = f"{files.name} with transformers {installed_version('transformers')}"
        raise MismatchError(f"processor {name} {error}: {_ADVICE}") from error
    return tensors


def _process_media(
    vision: FamilyMedia, part: Any, media: Sequence[tuple[Media, Any]]
) -> Mapping[str, Any]:
    """Return what the image or video processor makes of one sample's opened media of its kind, with
    the metadata of videos; raise NotBuilt if it refuses them, as older releases do."""
    refs, kind = [medium.ref for medium, _ in media], media[0][0].kind
    try:
        if kind == "image":
            # One list of one sample's images, as the whole processor passes them on.
            images: Mapping[str, Any] = part(
                images=[refs], return_tensors="pt", **vision.image_options
            )
            return images
        metadata = [of_video for _, of_video in media]
        features: dict[str, Any] = part(
            videos=refs, video_metadata=metadata, do_sample_frames=False, return_tensors="pt"
        )
    except ValueError as cause:
        sizes = ", ".join(
            "x".join(map(str, ref.size if kind == "image" else ref.shape)) for ref in refs
        )
        reason = " ".join(str(cause).split())[:120]
        raise NotBuilt(f"does not build {kind}s of {sizes} ({reason})") from cause
    if vision.pixels_in_order:  # frames as images, one after the other
        return {"pixel_values": features["pixel_values_videos"].flatten(0, 1)}
    if "second_per_grid_ts" in vision.model_inputs:
        # As `Qwen2_5_VLProcessor._process_videos`.
        step = part.temporal_patch_size
        # `VideoMetadata.sampled_fps`, which transformers 4 lacks.
        rates = [
            24.0
            if video.fps is None
            else len(video.frames_indices) / video.total_num_frames * video.fps
            for video in metadata
        ]
        seconds = [step / rate for rate in rates]
        features["second_per_grid_ts"] = import_torch().tensor(seconds)
    return features
