"""Media of a family's sample: its image and video processors are called each alone, which is quick
and needs no torchvision. What they make must be what was counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packidx.encode.imports import import_torch
from packidx.encode.media import opened
from packidx.encode.whole import NotBuilt
from packidx.errors import MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import MediaColumns
from packidx.processor.families.base import FamilyMedia
from packidx.processor.kinds import KINDS
from packidx.records.conversation import Conversation, Media
from packidx.software import installed

if TYPE_CHECKING:
    import torch

_ADVICE = (
    "use the release of transformers that they were counted with, or a newer one, leave the record"
    " out, or pass your own encode(record) callable"
)

MakePatches = Callable[[Sequence[Any], "NDArray[np.int64]"], "dict[str, torch.Tensor] | None"]
"""(images, their grids as counted) → what a family's image processor makes of them; None where that
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
    given, options = opened(conversation, vision.sample_frames, whole)
    metadata = iter(options.get("video_metadata", ()))
    each = [(medium, next(metadata) if medium.kind == "video" else None) for medium in given.media]
    tensors: dict[str, torch.Tensor] = {}
    try:
        if vision.pixels_in_order:
            made = [_features(vision, parts[one[0].kind], [one])["pixel_values"] for one in each]
            tensors["pixel_values"] = import_torch().cat(made)
        for kind in () if vision.pixels_in_order else kinds:
            own = [one for one in each if one[0].kind == kind]
            features: Mapping[str, Any] | None = None
            if kind == "image":
                grids = media.grid[media.kind == KINDS.index(kind)]
                features = patches([medium.ref for medium, _ in own], grids)
            features = _features(vision, parts[kind], own) if features is None else features
            tensors |= {name: features[name] for name in vision.model_inputs if name in features}
        _check_patches(vision, media, tensors)
    except NotBuilt as error:
        name = f"{files.name} with transformers {installed('transformers')}"
        raise MismatchError(f"processor {name} {error}: {_ADVICE}") from error
    return tensors


def _features(
    vision: FamilyMedia, part: Any, media: Sequence[tuple[Media, Any]]
) -> Mapping[str, Any]:
    """Return what the image or video processor makes of media of its kind in one sample.

    Args:
        media: opened, with the metadata of videos.

    Raises:
        NotBuilt: it refuses them, as older releases do.
    """
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
        seconds = [step / _sampled_fps(video) for video in metadata]
        features["second_per_grid_ts"] = import_torch().tensor(seconds)
    return features


def _sampled_fps(metadata: Any) -> float:
    """Frames taken per second: `VideoMetadata.sampled_fps`, which transformers 4 lacks."""
    if metadata.fps is None:
        return 24.0
    taken = len(metadata.frames_indices) / metadata.total_num_frames
    return float(taken * metadata.fps)


def _check_patches(
    vision: FamilyMedia, media: MediaColumns, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Check that the tensors of a sample's media have the patches that were counted.

    A release that does not know a setting of the processor leaves it out without a word.

    Raises:
        NotBuilt: they are others.
    """
    if vision.pixels_in_order and tensors:
        # InternVL's patches are tiles of ``pixel_values`` and have no grids.
        tiles, counted = len(tensors["pixel_values"]), int(media.grid[:, 0].sum())
        if tiles != counted:
            raise NotBuilt(f"makes {tiles} tiles of this sample, and {counted} were counted")
    for number, kind in enumerate(KINDS):
        made = tensors.get(f"{kind}_grid_thw")
        own = media.grid[media.kind == number].tolist()
        if made is not None and made.tolist() != own:
            grids = f"{made.tolist()} (time, height, width)"
            raise NotBuilt(f"makes {kind}s of grids {grids}, and {own} were counted")
