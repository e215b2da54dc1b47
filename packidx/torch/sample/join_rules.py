"""By which rule tensors of one name become one, where several samples are joined.

Most count media, tiles or patches in their rows, and are joined on dimension 0. Whole numbers may
say more: an index counts from its sample's first patch, and joined as it is it would point into
another sample's pixels. So those are joined by a rule that is known, or not at all. What is not
whole numbers (pixels, masks of bool) points nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError

# Per-token inputs beside ids, labels and positions, and what stands for a sample without them.
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


class Rule(NamedTuple):
    """A rule, parsed.

    Attributes:
        name: ``'rows'``, ``'last'``, ``'tokens'`` or ``'index'``.
        of: the tensor whose rows an index counts.
        dims: how many of that tensor's first dimensions are counted as one.
    """

    name: str
    of: str = ""
    dims: int = 1


ROWS = Rule("rows")
LAST = Rule("last")

# Whole numbers that transformers' processors give (5.23; read in its models' forward).
_KNOWN = {
    **dict.fromkeys(SEQUENCE_FILL, Rule("tokens")),
    # Pixels as they are in the file; a user's encoder may leave the rest to the device.
    "pixel_values": ROWS,
    "pixel_values_videos": ROWS,
    # Height and width (and time) of each medium in patches.
    "image_grid_thw": ROWS,  # Qwen, GLM, Ernie, PaddleOCR, VideoLLaMA 3, Inkling 2, and others
    "video_grid_thw": ROWS,
    "image_grid_hw": ROWS,  # Nemotron H Omni
    "image_grids": ROWS,  # Molmo 2: of the whole image and of its crops
    "video_grids": ROWS,  # Molmo 2: frames, rows, columns
    "spatial_shapes": ROWS,  # LFM2-VL, SigLIP 2
    "target_sizes": ROWS,  # MiniCPM-V: of each image and each of its slices
    "target_sizes_videos": ROWS,
    "patches_grid": ROWS,  # UnlimitedOCR: tiles side by side and one over the other
    # Height and width of each image in pixels.
    "image_sizes": ROWS,  # LLaVA-NeXT, LLaVA-OneVision, Granite, Pixtral, Mistral 3, Emu3
    "image_sizes_videos": ROWS,
    "height": ROWS,  # Kosmos-2.5
    "width": ROWS,
    "image_flags": ROWS,  # InternVL with OpenGVLab's own code: which tiles are real
    # How many parts each medium has, or which way it is reduced.
    "batch_num_images": ROWS,  # LLaVA-OneVision: images of each sample
    "image_num_crops": ROWS,  # Molmo 2
    "num_local_patches": ROWS,  # DeepSeek-OCR 2, Step 3
    "num_frames_per_video": ROWS,  # Gemma 4
    "image_merge_sizes": ROWS,  # VideoLLaMA 3
    "video_merge_sizes": ROWS,
    "chunk_sample_lengths": ROWS,  # dots3: of each chunk of audio
    # Where each patch is in its own image, -1 for patches that fill up (Gemma 4).
    "image_position_ids": ROWS,
    "video_position_ids": ROWS,
    # Patches from the sample's first, counted through all crops, and so into the pack's (Molmo 2).
    "image_token_pooling": Rule("index", "pixel_values", 2),
    "video_token_pooling": Rule("index", "pixel_values_videos", 2),
    # Masks as whole numbers.
    "pixel_attention_mask": ROWS,  # Idefics 2 and 3, SmolVLM: of pixels; LFM2-VL: of patches
    "pixel_mask": ROWS,  # Aria
    "feature_attention_mask": ROWS,  # Qwen2.5-Omni, Qwen3-Omni: frames of each audio
    "input_features_mask": ROWS,  # Gemma 3n, Gemma 4
    "input_values_mask": ROWS,  # Muse Spark
    "video_compression_mask": ROWS,  # VideoLLaMA 3: features that are kept
    # An audio's frames as numbers of codes, and the mask of these (Inkling).
    "audio_input_ids": ROWS,
    "audio_input_ids_mask": ROWS,
    "image_attention_mask": ROWS,  # Phi-4: patches of each crop
    "audio_embed_sizes": ROWS,
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
    """Whether `value` may hold indices: whole numbers, but no bytes, which are pixels."""
    is_other = value.dtype in (torch.bool, torch.uint8)
    return not (is_other or value.is_floating_point() or value.is_complex())


def rule_of(key: str, value: Tensor, names: Iterable[str], rules: Rules | None) -> Rule:
    """How tensors named `key` are joined.

    Args:
        names: of all tensors of the sample.
        rules: the encoder's own.

    Raises:
        MismatchError: it holds whole numbers whose rule is unknown, or cannot be in a pack.
        OptionError: its rule of `rules` is none.
    """
    if rules and key in rules:
        return parse_rule(key, rules[key])
    if key in {grows for by, grows in _GROW_LAST.items() if by in names}:
        return LAST
    if key in _OF_TOKENS_AND_MEDIA and "image_pixel_values" not in names:
        raise MismatchError(
            f"encode returned {key}: {_OF_TOKENS_AND_MEDIA[key]} attends to its media through it,"
            " token by token, and in a pack samples would see each other's media: this model"
            " cannot be trained on packs"
        )
    if key in _KNOWN:
        return _KNOWN[key]
    if not is_integer(value):
        return ROWS
    raise MismatchError(
        f"encode returned {key} {list(value.shape)} of whole numbers, and packidx does not know how"
        " those of several samples are joined: if they count tokens or patches, they would point"
        f" into another sample's. Give encode an attribute join = {{'{key}': RULE}}, where RULE is"
        f" one of {FORMS}; or leave {key} out"
    )


def parse_rule(key: str, text: object) -> Rule:
    """The rule that an encoder states for `key`.

    Raises:
        OptionError: it is none.
    """
    if text in ("rows", "last", "tokens"):
        return Rule(str(text))
    index = re.fullmatch(r"index:([^:]+)(?::([1-9]))?", text) if isinstance(text, str) else None
    if index is None:
        raise OptionError(f"encode.join says {text!r} of {key}: say one of {FORMS}")
    return Rule("index", index[1], int(index[2] or 1))


def rules_of(encode: object) -> dict[str, str]:
    """The rules that an encoder states for tensors of its own, in an attribute ``join``.

    Raises:
        OptionError: it is no dict, or one of them is no rule.
    """
    rules = getattr(encode, "join", None) or {}
    if not isinstance(rules, Mapping):
        raise OptionError(f"encode.join is {rules!r}: make it a dict, {{name: rule}}")
    for key, rule in rules.items():
        parse_rule(key, rule)
    return dict(rules)


def fills(rules: Rules | None) -> dict[str, int]:
    """`SEQUENCE_FILL` with what the encoder's own `rules` call one number for each token."""
    own = [key for key, rule in (rules or {}).items() if rule == "tokens"]
    return {**dict.fromkeys(own, 0), **SEQUENCE_FILL}
