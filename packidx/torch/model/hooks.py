"""Forward hooks for models whose own masks do not keep packed samples apart.

They stand on inner modules, which every wrapper calls, and are module-level functions, so that a
prepared model can still be copied and pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from packidx.errors import MismatchError
from packidx.torch.batch.masks import Between, PackBlockMask, block_mask, causal_within

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Arguments | None]


def install(module: nn.Module, hook: Hook) -> None:
    """Register `hook` before `module`'s forward, once however often it is asked for."""
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


def bidirectional_images(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Gemma 3: masks per layer type, images seen in both directions within their own sample.

    transformers (5.23) looks image blocks up at a token's position in its sample as if that were
    its column: in sliding layers, every sample but the first gets the first one's images.
    """
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    ours = mask is None or isinstance(mask, BlockMask)
    if not ours or positions is None or kwargs.get("past_key_values") is not None:
        return None
    types = kwargs.get("token_type_ids")
    if types is None:
        if kwargs.get("pixel_values") is None:
            return args, {**kwargs, "attention_mask": None}  # text: transformers' masks are right
        raise MismatchError(
            "the batch has pixel_values and no token_type_ids, so this model would read its images"
            " in one direction: let encode return token_type_ids, as the model's processor does"
        )
    own: Any = module.config
    config = own.get_text_config()
    implementation = config._attn_implementation
    segments = _segments(positions.expand(types.shape[0], -1))
    everywhere = Between(causal_within(segments).first, _ends(types == 1, segments))
    column = torch.arange(types.shape[1], device=types.device)
    oldest = column - config.sliding_window + 1  # that a sliding layer sees
    nearby = Between(everywhere.first.maximum(oldest), everywhere.last)
    build = {"eager": _additive, "flex_attention": _tiled}.get(implementation, _boolean)
    masks = {
        "full_attention": build(everywhere, module),
        "sliding_attention": build(nearby, module),
    }
    return args, {**kwargs, "attention_mask": masks}


def _segments(positions: Tensor) -> Tensor:
    """Number of each token's sample, int64 [B, T]: one begins where positions do not go on."""
    first = positions[:, :1] - 1
    return (positions.diff(prepend=first, dim=-1) != 1).cumsum(-1)


def _ends(image: Tensor, segments: Tensor) -> Tensor:
    """Column of the last token that each one sees, int64 [B, T]: its image's, or its own.

    Args:
        image: bool [B, T]; an image ends with its sample at the latest.
    """
    length = image.shape[1]
    column = torch.arange(length, device=image.device).expand_as(segments)
    goes_on = nn.functional.pad(image[:, :-1] & image[:, 1:] & (segments.diff(dim=-1) == 0), (0, 1))
    ends = torch.where(goes_on, length, column)
    return ends.flip(-1).cummin(-1).values.flip(-1)


def _boolean(rule: Between, module: nn.Module) -> Tensor:
    """bool [B, 1, T, T], True where a token is seen."""
    key = torch.arange(rule.first.shape[1], device=rule.first.device)
    return ((key >= rule.first[..., None]) & (key <= rule.last[..., None]))[:, None]


def _additive(rule: Between, module: nn.Module) -> Tensor:
    """[B, 1, T, T] in the model's dtype: 0 where a token is seen, its lowest number elsewhere."""
    dtype = next(module.parameters()).dtype
    zero = torch.zeros((), dtype=dtype, device=rule.first.device)
    return torch.where(_boolean(rule, module), zero, torch.finfo(dtype).min)


def _tiled(rule: Between, module: nn.Module) -> PackBlockMask:
    return block_mask(rule)


def drop_block_mask(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Sliding or chunked layers: one BlockMask for all layers would switch their windows off.

    Without it transformers makes a mask for each type of layer, where positions restart.
    """
    if not isinstance(kwargs.get("attention_mask"), BlockMask):
        return None
    return args, {**kwargs, "attention_mask": None}


def number_segments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Linear attention: its convolution needs ``seq_idx`` beside the bounds of its recurrence."""
    if kwargs.get("past_key_values") is not None:
        return None
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is None:
        raise MismatchError(
            "the batch does not state where its samples begin, which this model's linear attention"
            " needs: use collate(packs, attention='flash')"
        )
    if kwargs.get("seq_idx") is None:
        lengths = bounds.diff()
        numbers = torch.arange(len(lengths), device=bounds.device, dtype=torch.int32)
        kwargs = {**kwargs, "seq_idx": numbers.repeat_interleave(lengths)[None]}
    return args, kwargs


# How collate(packs, attention="flash") says where samples are.
_SAMPLES = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


def own_bounds(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """A vision tower's images lie elsewhere than the samples, whose bounds some models hand on.

    Qwen-VL of transformers 5.11 to 5.18 does, and its tower then gives the kernel both.
    """
    if not _SAMPLES & kwargs.keys():
        return None
    return args, {key: value for key, value in kwargs.items() if key not in _SAMPLES}
