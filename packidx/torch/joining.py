"""Join tensors of one name, of several samples or of several packs, into one.

Most count media, tiles or patches in their rows, and are joined on dimension 0. Whole numbers may
say more: an index counts from its sample's first patch, and joined as it is it would point into
another sample's pixels. So those are joined by a rule that is known, or not at all. What is not
whole numbers (pixels, masks of bool) points nowhere.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.torch.pixels import empty_tensor

IGNORE = -100  # label of positions that do not contribute to the loss, as in transformers

# Per-token inputs that models take beside ids, labels and positions, and what fills them up.
# A name decides, not a shape: pixel_values of T patches has as many rows as the sample tokens.
SEQUENCE_FILL = {
    "attention_mask": 1,
    "token_type_ids": 0,
    "mm_token_type_ids": 0,
    "moe_mm_token_type_ids": 0,  # Ernie 4.5 VL MoE: which experts a token goes to
    "image_embeds_position_mask": 0,  # Kosmos-2, Kosmos-2.5: which tokens are an image's
}

Rules = Mapping[str, str]
"""Name of a tensor → its rule: ``'rows'``, ``'last'``, ``'tokens'``, ``'index:NAME'``."""

FORMS = (
    "'rows' (of media, tiles or patches: joined on dimension 0), 'last' (joined on the last"
    " dimension), 'tokens' (one number for each token), 'index:NAME' (numbers of NAME's rows, below"
    " 0: of none; 'index:NAME:2' of the rows of its first 2 dimensions together)"
)
_FORM = re.compile(r"rows|last|tokens|index:([^:]+)(?::([1-9]))?")

# Whole numbers that transformers' processors give (5.23; read in its models' forward), and that
# are joined as rows: of pixels, of masks, or of numbers of their own medium.
_ROWS = {
    # Pixels as they are in the file; a user's encoder may leave the rest to the device.
    *("pixel_values", "pixel_values_videos"),
    # Height and width (and time) of each medium in patches; tiles side by side and over another.
    *("image_grid_thw", "video_grid_thw", "image_grid_hw", "image_grids", "video_grids"),
    *("spatial_shapes", "target_sizes", "target_sizes_videos", "patches_grid"),
    # Height and width of each image in pixels.
    *("image_sizes", "image_sizes_videos", "height", "width"),
    # How many parts each medium has, which of them are real, or which way it is reduced.
    *("batch_num_images", "image_num_crops", "num_local_patches", "num_frames_per_video"),
    *("image_flags", "image_merge_sizes", "video_merge_sizes", "chunk_sample_lengths"),
    "audio_embed_sizes",
    # Where each patch is in its own image, -1 for patches that fill up (Gemma 4).
    *("image_position_ids", "video_position_ids"),
    # Masks of pixels, patches, crops, frames and features; an audio's frames as numbers of codes.
    *("pixel_attention_mask", "pixel_mask", "image_attention_mask", "video_compression_mask"),
    *("feature_attention_mask", "input_features_mask", "input_values_mask"),
    *("audio_input_ids", "audio_input_ids_mask"),
}
_KNOWN = {
    **dict.fromkeys(SEQUENCE_FILL, "tokens"),
    **dict.fromkeys(_ROWS, "rows"),
    # Patches from the sample's first, counted through all crops, and so into the pack's (Molmo 2).
    "image_token_pooling": "index:pixel_values:2",
    "video_token_pooling": "index:pixel_values_videos:2",
}

# Tensors beside which the named one grows on its last dimension. MiniCPM-V: the patches of all
# images side by side, [1, channels, side, patches * side], of which the model reads the first row.
_GROW_LAST = {"target_sizes": "pixel_values", "target_sizes_videos": "pixel_values_videos"}

# What says for each token which of the sample's media it sees: another sample's it may not see,
# and a pack has no room to say so.
_OF_TOKENS_AND_MEDIA = {
    "cross_attention_mask": "Mllama",
    "image_attention_mask": "Idefics",
}


def is_integer(value: Tensor) -> bool:
    """Return True if `value` may hold indices: whole numbers, but no bytes, which are pixels."""
    is_other = value.dtype in (torch.bool, torch.uint8)
    return not (is_other or value.is_floating_point() or value.is_complex())


def rule_of(key: str, value: Tensor, names: Iterable[str], rules: Rules | None) -> str:
    """Return the rule by which tensors named `key` are joined.

    Args:
        names: of all tensors of the sample.
        rules: the encoder's own.

    Raises:
        MismatchError: it holds whole numbers whose rule is unknown, or cannot be in a pack.
    """
    if rules and key in rules:
        return rules[key]
    if key in {grows for by, grows in _GROW_LAST.items() if by in names}:
        return "last"
    if key in _OF_TOKENS_AND_MEDIA and "image_pixel_values" not in names:
        raise MismatchError(
            f"encode returned {key}: {_OF_TOKENS_AND_MEDIA[key]} attends to its media through it,"
            " token by token, and in a pack samples would see each other's media: this model"
            " cannot be trained on packs"
        )
    if key in _KNOWN:
        return _KNOWN[key]
    if not is_integer(value):
        return "rows"
    raise MismatchError(
        f"encode returned {key} {list(value.shape)} of whole numbers, and packidx does not know how"
        " those of several samples are joined: if they count tokens or patches, they would point"
        f" into another sample's. Give encode an attribute join = {{'{key}': RULE}}, where RULE is"
        f" one of {FORMS}; or leave {key} out"
    )


def rules_of(encode: object) -> dict[str, str]:
    """The rules that an encoder states for tensors of its own, in an attribute ``join``.

    Raises:
        OptionError: it is not a dict, or one of them is not a rule.
    """
    rules = getattr(encode, "join", None) or {}
    if not isinstance(rules, Mapping):
        raise OptionError(f"encode.join is {rules!r}: make it a dict, {{name: rule}}")
    for key, rule in rules.items():
        if not (isinstance(rule, str) and _FORM.fullmatch(rule)):
            raise OptionError(f"encode.join says {rule!r} of {key}: say one of {FORMS}")
    return dict(rules)


def token_fills(rules: Rules | None) -> dict[str, int]:
    """Return what a sample has one number of for each token, positions apart, and its padding."""
    own = [key for key, rule in (rules or {}).items() if rule == "tokens"]
    return {"input_ids": 0, "labels": IGNORE, **dict.fromkeys(own, 0), **SEQUENCE_FILL}


# Tensors that a model reads only as far as another one says: it takes them filled up with zeros.
_BOUNDED_BY = {
    # LLaVA-NeXT, LLaVA-OneVision: tiles. Pixtral, Mistral 3: height and width.
    "image_sizes": ("pixel_values",),
    # Idefics3, SmolVLM: tiles, of which those of zeros alone are left out.
    "pixel_attention_mask": ("pixel_values", "pixel_attention_mask"),
    # Qwen2.5-Omni, Qwen3-Omni: frames of audio. Inkling: the same, as numbers.
    "feature_attention_mask": ("input_features", "feature_attention_mask"),
    # Gemma 3n and 4, Parakeet: the same, frames first.
    "input_features_mask": ("input_features", "input_features_mask"),
    "audio_input_ids_mask": ("audio_input_ids", "audio_input_ids_mask"),
}


def join_media(
    parts: Sequence[Mapping[str, Tensor]], rules: Rules | None = None
) -> dict[str, Tensor]:
    """The media tensors of several samples, or of several packs, joined as `rule_of` says.

    If the model knows how much of ``pixel_values`` is real (by ``image_sizes`` or
    ``pixel_attention_mask``) parts of different shapes are filled up with zeros to the largest.

    Args:
        rules: how the encoder says that its own tensors are joined.

    Raises:
        MismatchError: tensors of one name have shapes that do not go together, or hold whole
            numbers that no rule joins.
    """
    keys = list(dict.fromkeys(key for part in parts for key in part))
    fillable = {key for by, names in _BOUNDED_BY.items() if by in keys for key in names}
    joined = {}
    for key in keys:
        tensors = [part[key] for part in parts if key in part]
        rule = rule_of(key, tensors[0], keys, rules)
        if rule.startswith("index"):
            tensors = _shift_indices(key, rule, parts)
        joined[key] = _join_tensors(key, tensors, rule == "last", key in fillable)
    return joined


def _shift_indices(key: str, rule: str, parts: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Each part's indices, counted through all parts' rows of the tensor that they index."""
    _, of, *dims = rule.split(":")
    seen, tensors = 0, []
    for part in parts:
        if key in part:
            if of not in part:
                raise MismatchError(
                    f"encode returned {key}, which counts the rows of {of}, without {of}"
                )
            index = part[key]
            tensors.append(torch.where(index < 0, index, index + seen) if seen else index)
        if of in part:
            seen += math.prod(part[of].shape[: int(dims[0]) if dims else 1])
    return tensors


def _join_tensors(key: str, tensors: Sequence[Tensor], is_last: bool, fillable: bool) -> Tensor:
    shapes = {tuple(tensor.shape[:-1] if is_last else tensor.shape[1:]) for tensor in tensors}
    if len(shapes) == 1 and is_last:
        return torch.cat(tuple(tensors), dim=-1)
    rows = sum(tensor.shape[0] for tensor in tensors)
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if len(shapes) == 1:
        return torch.cat(list(tensors), out=empty_tensor((rows, *shapes.pop()), dtype))
    if is_last or not fillable or len({len(shape) for shape in shapes}) > 1:
        raise MismatchError(
            f"encode returned {key} with different shapes {sorted(shapes)}"
            f" {'before the last' if is_last else 'after the first'} dimension: samples of one pack"
            " must agree in it"
        )
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    joined = empty_tensor((rows, *largest), dtype).zero_()
    at = 0
    for tensor in tensors:
        inside = tuple(slice(size) for size in tensor.shape[1:])
        joined[(slice(at, at + tensor.shape[0]), *inside)] = tensor
        at += tensor.shape[0]
    return joined
