"""Samples built by transformers: the media of a family, or a whole sample.

A family's image and video processors are called each alone, which is quick and needs no
torchvision. What they make must be what was counted. Any other processor is called whole, and our
label tokens are found in the ids that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Bools, Int64s
from packidx.encode.imports import import_torch, transformers_class
from packidx.encode.media import opened
from packidx.encode.whole import NotBuilt, build_sample, ids_of
from packidx.errors import MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import MediaColumns
from packidx.processor.families.base import FamilyMedia
from packidx.processor.kinds import KINDS
from packidx.records.conversation import Conversation, Media

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
    try:
        tensors = _of_parts(vision, conversation, media, load, patches)
        _check_patches(vision, media, tensors)
    except NotBuilt as error:
        name = f"{files.name} with transformers {transformers_class('__version__')}"
        raise MismatchError(f"processor {name} {error}: {_ADVICE}") from error
    return tensors


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
    given, options = opened(conversation, vision.sample_frames, whole)
    metadata = iter(options.get("video_metadata", ()))
    media = [(medium, next(metadata) if medium.kind == "video" else None) for medium in given.media]
    if vision.pixels_in_order:
        features = [_features(vision, parts[each[0].kind], [each]) for each in media]
        return {"pixel_values": import_torch().cat([each["pixel_values"] for each in features])}
    tensors: dict[str, torch.Tensor] = {}
    for kind, part in parts.items():
        own = [each for each in media if each[0].kind == kind]
        made: Mapping[str, Any] | None = None
        if kind == "image":
            grids = counted.grid[counted.kind == KINDS.index(kind)]
            made = patches([each.ref for each, _ in own], grids)
        made = _features(vision, part, own) if made is None else made
        tensors |= {name: made[name] for name in vision.model_inputs if name in made}
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


# -- whole samples ---------------------------------------------------------------------------------


def whole_sample(
    processor: Any, files: ProcessorFiles, conversation: Conversation, *, every_frame: bool = False
) -> dict[str, Any]:
    """Return `build_sample` with ``input_ids``, int64 ``[T]`` (numpy)."""
    template, end = files.template_of(conversation), files.end_of_text
    built = build_sample(
        processor, template, conversation, end_of_text=end, every_frame=every_frame
    )
    return {**built, "input_ids": np.array(ids_of(built), np.int64)}


def with_labels(
    built: Mapping[str, Any],
    files: ProcessorFiles,
    own: tuple[Int64s, Bools],
    conversation: Conversation,
) -> dict[str, Any]:
    """Add ``labels``, int64 ``[T]``, to a whole sample.

    Args:
        own: token ids and label mask ``[n]`` of the same sample as our rules make it, media as
            runs of feature tokens or as placeholders.

    Raises:
        NotBuilt: our label tokens are not in the sample.
    """
    ids = built["input_ids"]
    is_document = conversation.is_document
    written = () if files.vision is None else files.vision.placeholders.values()
    media = [*files.feature_ids, *filter(None, map(files.tokenizer.token_to_id, written))]
    trained = find_labels(*own, ids, media, is_document=is_document)
    return {**built, "labels": np.where(trained, ids, IGNORED)}


_CONTEXTS = (32, 8, 4, 2, 0)
"""Tokens before a run of label tokens that are looked for with it, as many as the processor
leaves as they are."""
IGNORED = -100
"""Label of a token that is not trained on."""


def find_labels(
    own: Int64s,
    trained: Bools,
    ids: Int64s,
    features: Sequence[int] = (),
    *,
    is_document: bool = False,
) -> Bools:
    """Find our label tokens in the ids of the real processor.

    A run of label tokens, with tokens before it, must occur as often in the processor's ids as in
    ours: then the nth occurrence in one is the nth in the other.

    Args:
        own, trained: token ids and label mask ``[n]`` of our rules.
        ids: ``[T]``
        features: ids of tokens in `own` that stand for media.
        is_document: True if our first token, where it is text, is trained wherever another one
            precedes it.

    Returns:
        ``[T]`` True for label tokens.

    Raises:
        NotBuilt: a run of label tokens does not occur as often.
    """
    if np.array_equal(own, ids):
        return trained
    found = np.zeros(len(ids), bool)
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False)).reshape(-1, 2)
    for first, end in edges.tolist():
        media = np.flatnonzero(np.isin(own[:first], features))
        before = first - (int(media[-1]) + 1 if len(media) else 0)
        for context in dict.fromkeys(min(each, before) for each in _CONTEXTS):
            wanted = own[first - context : end]
            mine, theirs = _find(own, wanted), _find(ids, wanted)
            if len(mine) == len(theirs):
                start = theirs[mine.index(first - context)] + context
                break
        else:
            start = len(ids) - (end - first)
            if end == len(own) and np.array_equal(ids[start:], own[first:]):
                found[start:] = True
                continue
            raise NotBuilt("its label tokens are not found in the sample that it builds")
        stop = start + end - first
        if is_document and first == before == 1 < start:  # another token predicts the first
            start -= 1
        found[start:stop] = True
    return found


def _find(ids: Int64s, wanted: Int64s) -> list[int]:
    """Return all positions at which `ids` hold `wanted`."""
    if len(wanted) > len(ids):
        return []
    starts = np.flatnonzero(ids[: len(ids) - len(wanted) + 1] == wanted[0])
    hits: list[int] = []
    for start in starts.tolist():
        if np.array_equal(ids[start : start + len(wanted)], wanted):
            hits.append(start)
    return hits


_OURS = frozenset(("input_ids", "labels", "position_ids", "attention_mask"))
"""Masks that packidx makes itself, or a sample without padding does not need."""
_OF_TILES = {"PerceptionLMProcessor": ("pixel_values", "pixel_values_videos")}
"""What models look at as tiles, whichever medium they are of: as [tiles, 1, …], their numbers may
differ from medium to medium, and from sample to sample."""


def media_of_whole(built: Mapping[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Return what the model takes of a whole sample besides ids, labels and positions.

    Args:
        built: what the processor built.
        name: the processor's class.

    Raises:
        NotBuilt: something of it is not one tensor.
    """
    library, tensors = import_torch(), {}
    for key, value in built.items():
        if key not in _OURS and value is not None:
            if key in _OF_TILES.get(name, ()):
                value = library.cat(list(value))[:, None]
            tensor = _tensor(key, value)
            tensors[key] = tensor.reshape(-1) if key.endswith("token_type_ids") else tensor
    # Most processors mask no token.
    mask = library.as_tensor(built.get("attention_mask", [])).reshape(-1)
    return tensors if bool(mask.all()) else {"attention_mask": mask, **tensors}


def _tensor(name: str, value: Any) -> torch.Tensor:
    """One of the processor's outputs; some are lists, of numbers or of a tensor for each medium."""
    library = import_torch()
    try:
        if isinstance(value, list) and value and isinstance(value[0], library.Tensor):
            tensor: torch.Tensor = library.stack(value)
        else:
            tensor = library.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise NotBuilt(f"it gives {name} as no one tensor: {reason}") from error
    return tensor
