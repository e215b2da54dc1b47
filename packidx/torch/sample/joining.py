"""Media tensors of several samples, or of several packs, joined."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from packidx.errors import MismatchError

_MAPPED_ANEW = 32 << 20  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX

# Tensors that a model reads only as far as another one says: it takes them filled up with zeros.
_BOUNDED_BY = {
    # LLaVA-NeXT, LLaVA-OneVision: tiles. Pixtral, Mistral 3: height and width.
    "image_sizes": ("pixel_values",),
    # Idefics3, SmolVLM: tiles, of which those of zeros alone are left out.
    "pixel_attention_mask": ("pixel_values", "pixel_attention_mask"),
}


def join_media(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The media tensors of several samples, or of several packs, joined on dimension 0.

    Where the model is told how much of ``pixel_values`` is real (by ``image_sizes`` or
    ``pixel_attention_mask``) parts of different shapes are filled up with zeros to the largest.

    Raises:
        MismatchError: tensors of one name have shapes that do not go together.
    """
    keys = list(dict.fromkeys(key for part in parts for key in part))
    fillable = {key for by, names in _BOUNDED_BY.items() if by in keys for key in names}
    return {
        key: _join(key, [part[key] for part in parts if key in part], key in fillable)
        for key in keys
    }


def _join(key: str, tensors: Sequence[Tensor], fillable: bool) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) == 1:
        rows = sum(tensor.shape[0] for tensor in tensors)
        return torch.cat(tuple(tensors), out=_empty((rows, *shapes.pop()), tensors))
    if not fillable or len({len(shape) for shape in shapes}) > 1:
        raise MismatchError(
            f"encode returned {key} with different shapes {sorted(shapes)} after the first"
            " dimension: samples of one pack must agree in it"
        )
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    joined = _empty((sum(tensor.shape[0] for tensor in tensors), *largest), tensors).zero_()
    at = 0
    for tensor in tensors:
        inside = tuple(slice(size) for size in tensor.shape[1:])
        joined[(slice(at, at + tensor.shape[0]), *inside)] = tensor
        at += tensor.shape[0]
    return joined


def _empty(shape: tuple[int, ...], tensors: Sequence[Tensor]) -> Tensor:
    """An uninitialised tensor for all of `tensors`.

    What glibc gives out above 32 MB is new every time, and the kernel takes longer to hand it over
    in pages of 4 KB than the copying takes. NumPy asks for huge pages; joining 100 MB of pixels was
    three times as fast in them.
    """
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if dtype == torch.float32 and math.prod(shape) * 4 > _MAPPED_ANEW:
        return torch.from_numpy(np.empty(shape, np.float32))
    return torch.empty(shape, dtype=dtype)
