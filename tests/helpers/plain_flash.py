"""flash-attn's functions in plain torch, where transformers loads them from.

What is between a model and the kernel stays transformers' own: which arguments reach it, and
what a vision tower makes of those that were not meant for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers.modeling_flash_attention_utils as loading
from torch import Tensor

NAME = "flash_attention_2"
Bounds = tuple[int, ...]


class PlainFlash:
    """Notes the bounds that it was called with, causal and not."""

    def __init__(self) -> None:
        self.causal: set[Bounds] = set()
        self.both_ways: set[Bounds] = set()

    def varlen(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        bounds, of_keys = tuple(cu_seqlens_q.tolist()), tuple(cu_seqlens_k.tolist())
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert bounds[0] == of_keys[0] == 0 and bounds[-1] == len(q) and of_keys[-1] == len(k)
        assert int(max_seqlen_q) == int(cu_seqlens_q.diff().max())
        assert int(max_seqlen_k) == int(cu_seqlens_k.diff().max())
        assert bounds == of_keys or not causal
        (self.causal if causal else self.both_ways).add(bounds)
        scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        parts = [
            _attend(q[start:stop], k[first:last], v[first:last], scale, causal, window_size[0])
            for (start, stop), (first, last) in zip(
                pairwise(bounds), pairwise(of_keys), strict=True
            )
        ]
        return torch.cat(parts)

    def plain(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Rows of equal length, [B, T, heads, dim]; keys may have another length."""
        lengths = q.shape[1], k.shape[1]
        bounds = (
            torch.arange(0, len(q) * length + 1, length, dtype=torch.int32) for length in lengths
        )
        flat = (each.flatten(0, 1) for each in (q, k, v))
        return self.varlen(*flat, *bounds, *lengths, **options).view_as(q)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int) -> Tensor:
    """One sample, [T, heads, dim]; key and value may have fewer heads."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(repeats, dim=1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        place = torch.arange(len(q))
        back = place[:, None] - place
        unseen = (back < 0) | ((back > window) if window >= 0 else False)
        scores = scores.masked_fill(unseen, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@contextmanager
def plain_flash() -> Iterator[PlainFlash]:
    """Models that are given `NAME` inside call these functions."""
    ours = PlainFlash()
    with_cache = [None] if hasattr(loading, "_flash_with_kvcache_fn") else []  # since 5.6
    functions = (ours.plain, ours.varlen, *with_cache, loading._pad_input, loading._unpad_input)
    loaded = ("_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn")
    loaded += ("_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn")
    loaded += ("_loaded_implementation",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_lazy_imports", lambda *_, **__: functions)
        for name in loaded:
            if hasattr(loading, name):
                patch.setattr(loading, name, None)
        yield ours


def use_flash(model: Any) -> Any:
    """`model`, its vision tower included, under `NAME`: loading it so asks for the package."""
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = NAME
    return model
