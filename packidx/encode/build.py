"""The tensors of a sample's media, by transformers: what the model takes besides what is ours.

Of a family of ours the image and the video processor are called, each alone: that is quick, and
needs no torchvision. Any other processor is called whole. What either makes must be what was
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packidx.encode.imports import import_torch, transformers_class
from packidx.encode.media import opened
from packidx.encode.probe import ProbedMedia
from packidx.encode.whole import NotBuilt, build_sample, ids_of, tensors_of
from packidx.errors import MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import KINDS, MediaColumns
from packidx.processor.families.base import FamilyMedia
from packidx.records.conversation import Conversation

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
    ids: Sequence[int],
    load: Callable[[str], Any],
    patches: MakePatches,
) -> dict[str, torch.Tensor]:
    """Return what the model takes of one sample besides token ids, labels and positions.

    Tensors of media keep the processor's shapes. So a dimension of 1 in front is kept, too, where
    models count samples in it (Idefics, SmolVLM).

    Args:
        conversation: its media are opened, or bytes or paths.
        media: as they were counted.
        ids: the sample's token ids, as they were counted.
        load: ``'image'`` or ``'video'`` → a family's processor of these.
        patches: makes those of a family's images in its processor's place.

    Raises:
        BadRecord: a medium cannot be decoded.
        MismatchError: transformers builds no sample, or one of other patches or token ids.
        MissingExtraError, SourceError: the processor cannot be loaded.
    """
    vision = files.vision
    try:
        if isinstance(vision, FamilyMedia):
            tensors = {}
            if conversation.media:
                tensors = _of_parts(vision, conversation, media, load, patches)
            _check_patches(vision, media, tensors)
            return tensors
        if isinstance(vision, ProbedMedia):
            return _of_whole(files, vision, conversation, ids)
        return {}
    except NotBuilt as error:
        name = f"{files.name} with transformers {transformers_class('__version__')}"
        raise MismatchError(f"processor {name} {error}: {_ADVICE}") from error


# -- families --------------------------------------------------------------------------------------


def _of_parts(
    vision: FamilyMedia,
    conversation: Conversation,
    counted: MediaColumns,
    load: Callable[[str], Any],
    patches: MakePatches,
) -> dict[str, torch.Tensor]:
    kinds = [kind for kind in KINDS if any(kind == medium.kind for medium in conversation.media)]
    parts = {kind: load(kind) for kind in kinds}
    whole = SimpleNamespace(image_processor=parts.get("image"))
    given = opened(conversation, vision.sample_frames, whole)
    metadata = iter(given.options.get("video_metadata", ()))
    media = [
        _OneOpened(medium.kind, medium.ref, next(metadata) if medium.kind == "video" else None)
        for medium in given.conversation.media
    ]
    if vision.pixels_in_order:
        features = [_features(vision, parts[each.kind], [each]) for each in media]
        return {"pixel_values": import_torch().cat([each["pixel_values"] for each in features])}
    tensors: dict[str, torch.Tensor] = {}
    for kind, part in parts.items():
        own = [each for each in media if each.kind == kind]
        made: Mapping[str, Any] | None = None
        if kind == "image":
            grids = counted.grid[counted.kind == KINDS.index(kind)]
            made = patches([each.ref for each in own], grids)
        made = _features(vision, part, own) if made is None else made
        tensors |= {name: made[name] for name in vision.model_inputs if name in made}
    return tensors


class _OneOpened(NamedTuple):
    kind: str
    ref: Any
    """A PIL image, or frames uint8 ``[n, 3, height, width]``."""
    metadata: Any
    """Of a video."""


def _features(vision: FamilyMedia, part: Any, media: Sequence[_OneOpened]) -> Mapping[str, Any]:
    """Return what the image or video processor makes of media of its kind in one sample.

    Raises:
        NotBuilt: it refuses them, as older releases do.
    """
    refs = [medium.ref for medium in media]
    try:
        if media[0].kind == "image":
            # One list of one sample's images, as the whole processor passes them on.
            images: Mapping[str, Any] = part(
                images=[refs], return_tensors="pt", **vision.image_options
            )
            return images
        metadata = [medium.metadata for medium in media]
        features: dict[str, Any] = part(
            videos=refs, video_metadata=metadata, do_sample_frames=False, return_tensors="pt"
        )
    except ValueError as cause:
        sizes = ", ".join(
            "x".join(map(str, ref.size if media[0].kind == "image" else ref.shape)) for ref in refs
        )
        reason = " ".join(str(cause).split())[:120]
        raise NotBuilt(f"does not build {media[0].kind}s of {sizes} ({reason})") from cause
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


# -- any other processor ---------------------------------------------------------------------------


def _of_whole(
    files: ProcessorFiles, vision: ProbedMedia, conversation: Conversation, counted: Sequence[int]
) -> dict[str, torch.Tensor]:
    template, name = files.template_of(conversation), type(vision.processor).__name__
    try:
        built = build_sample(
            vision.processor, template, conversation, end_of_text=files.end_of_text
        )
        tensors = tensors_of(built, name)
    except NotBuilt as error:
        raise NotBuilt(f"does not build this sample, which was counted ({error})") from error
    _check_ids(ids_of(built), counted)
    for key in [key for key in tensors if key.endswith("token_type_ids")]:
        tensors[key] = tensors[key].reshape(-1)
    # Most processors hide no token.
    mask = import_torch().as_tensor(built.get("attention_mask", [])).reshape(-1)
    return tensors if bool(mask.all()) else {"attention_mask": mask, **tensors}


def _check_ids(real: Sequence[int], counted: Sequence[int]) -> None:
    """
    Raises:
        NotBuilt: the processor's token ids are not those that were counted.
    """
    if real != counted:
        pairs = zip(real, counted, strict=False)
        shared = min(len(real), len(counted))
        first = next((at for at, (a, b) in enumerate(pairs) if a != b), shared)
        raise NotBuilt(
            f"makes {len(real)} tokens of this sample and {len(counted)} were counted, of which"
            f" number {first} (from 0) is the first that differs"
        )
