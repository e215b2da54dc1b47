"""Context parallelism: each rank of a group takes its part of every sample of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packidx.errors import OptionError
from packidx.torch.joining import IGNORE

_BOUNDS = {"thd": "cu_seqlens_padded", "flash": "cu_seq_lens_q"}
_FEATURES = ("pixel_values", "input_features", "input_values")
_LOCAL = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def shard_for_cp(batch: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the part of `batch` that a rank of a context-parallel group computes.

    Each sample is cut into 2 · `size` chunks of one length, and the rank gets the chunks `rank` and
    2 · `size` - 1 - `rank`: with a causal mask every rank then has as much to compute. Megatron,
    Transformer Engine and the zigzag of ring-flash-attention cut so.

    Tensors with a number for each token are cut. ``shift_labels`` is added before that, since the
    next token may be on another rank; ``labels`` is the same then. Of a ``'thd'`` batch the bounds
    stay those of the whole sequence, as Transformer Engine takes them; of a ``'flash'`` batch they
    become those of the part.

    Args:
        batch: of `collate` with attention ``'thd'`` or ``'flash'``, for packs of a plan with
            ``--align 2·size``. Put images into ``inputs_embeds`` [1, T, H] before; a model that
            does so itself before it cuts (Megatron-Bridge, NeMo Automodel) takes the whole batch.
        rank: of the group, 0 ≤ rank < size.
        size: ranks of the group.

    Raises:
        OptionError: another attention, samples that `size` does not divide, pixels or sounds.
    """
    if not 0 <= rank < size:
        raise OptionError(f"rank {rank} is outside [0, {size}), the ranks of the group")
    kind = next((kind for kind, name in _BOUNDS.items() if name in batch), None)
    if kind is None:
        raise OptionError("context parallelism needs collate(packs, attention='thd' or 'flash')")
    if any(key.startswith(_FEATURES) for key in batch) and "inputs_embeds" not in batch:
        raise OptionError(
            "the batch has pixels or sounds, whose features no rank's part could hold: embed them"
            " first and give inputs_embeds in their place"
        )
    bounds: Tensor = batch[_BOUNDS[kind]]
    slots = bounds.diff()
    uneven = slots[slots % (2 * size) > 0].tolist()
    if uneven:
        raise OptionError(
            f"a sample takes {uneven[0]} tokens, which {2 * size} chunks do not divide: plan with"
            f" --align {2 * size}"
        )
    kept = _kept(bounds, rank, size)
    whole = _with_shifted_labels(batch)
    tokens = int(bounds[-1])
    part = {
        key: value.index_select(_token_dimension(key, value), kept)
        if isinstance(value, Tensor) and _is_of_tokens(key, value, tokens)
        else value
        for key, value in whole.items()
    }
    if kind == "flash":
        part |= {key: part[key] // size for key in _LOCAL}
    return part


def _kept(bounds: Tensor, rank: int, size: int) -> Tensor:
    """Places of the tokens that a rank has, int64 [T / size]."""
    chunks = bounds.diff().long() // (2 * size)
    slot = torch.repeat_interleave(torch.arange(len(chunks), device=bounds.device), 2 * chunks)
    first = 2 * (chunks.cumsum(0) - chunks)
    inside = torch.arange(len(slot), device=bounds.device) - first[slot]
    is_second = inside >= chunks[slot]
    chunk = torch.where(is_second, 2 * size - 1 - rank, rank)
    inside = inside - torch.where(is_second, chunks[slot], 0)
    return bounds[:-1].long()[slot] + chunk * chunks[slot] + inside


def _with_shifted_labels(batch: dict[str, Any]) -> dict[str, Any]:
    """`batch` with ``shift_labels``: what each position predicts."""
    if "labels" not in batch or "shift_labels" in batch:
        return batch
    labels = batch["labels"]
    shifted = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=IGNORE)
    return {**batch, "labels": shifted, "shift_labels": shifted}


def _token_dimension(key: str, value: Tensor) -> int:
    return 1 if key == "inputs_embeds" else value.ndim - 1


def _is_of_tokens(key: str, value: Tensor, tokens: int) -> bool:
    """Return whether a tensor has a number, or a vector, for each token: [1, T], [R, 1, T]."""
    if value.ndim < 2 or key.startswith(("cu_", "image_", "video_")):
        return False
    # B is 1: pixels, one row for each patch, may have as many columns as there are tokens.
    place = _token_dimension(key, value)
    return value.shape[place] == tokens and value.shape[place - 1] == 1
