"""Pixels of bytes made floats on the device, and the memory that a pack's pixels lie in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packidx.errors import MismatchError

TABLE = "pixel_table"
"""What a batch holds beside ``pixel_values`` of bytes: float32 ``[frames, 256, channels]``."""

_MAPPED_ANEW = 32 << 20  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX


def normalise_pixels(
    batch: Mapping[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Make the floats that a model takes of pixels that `ProcessorEncoder` gave as bytes.

    They are looked up in a table of what the processor makes of each value: in float32 they are its
    own pixels to the last bit. Call it where the batch is, after it was moved to the device.

    Args:
        batch: what `collate` or `Pack.joined` returns, as any other one, too.
        dtype: of the floats; they are rounded from float32.

    Returns:
        The batch without ``pixel_table``, its ``pixel_values`` in `dtype`, ``[patches, dim]`` or
        ``[tiles, 3, height, width]``.

    Raises:
        MismatchError: ``pixel_values`` are bytes, and no table is there.
    """
    made = {key: value for key, value in batch.items() if key != TABLE}
    for key, value in made.items():
        if key.startswith("pixel_values") and torch.is_floating_point(value):
            made[key] = value.to(dtype)
    pixels = made.get("pixel_values")
    if pixels is None or pixels.dtype != torch.uint8:
        return made
    if TABLE not in batch:
        raise MismatchError(
            f"the batch has pixel_values of bytes and no {TABLE}: give what collate returned, whole"
        )
    table = batch[TABLE].to(pixels.device, dtype)
    frames, _, channels = table.shape
    values = pixels.reshape(len(pixels), channels, -1)
    floats = torch.empty(
        (len(pixels), channels, frames, values.shape[2]), dtype=dtype, device=pixels.device
    )
    for channel in range(channels):
        numbers = values[:, channel].flatten().int()
        found = table[0, :, channel].index_select(0, numbers).view(len(pixels), 1, -1)
        floats[:, channel] = found
    # Tiles keep their shape.
    made["pixel_values"] = floats.flatten(1) if pixels.ndim == 2 else floats.view(pixels.shape)
    return made


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor: in a DataLoader's worker in shared memory, from which it is sent to
    the process that trains without a copy, as `default_collate` does.

    Elsewhere what glibc gives out above 32 MB is new every time, and the kernel takes longer to
    hand it over in pages of 4 KB than it takes to fill it. NumPy asks for huge pages; joining 100
    MB of pixels was three times as fast in them.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if torch.utils.data.get_worker_info() is not None and nbytes:
        storage: Any = torch.UntypedStorage
        flat = torch.empty(0, dtype=torch.uint8).set_(storage._new_shared(nbytes))
        return flat.view(dtype).view(tuple(shape))
    if nbytes > _MAPPED_ANEW:
        return torch.from_numpy(np.empty(nbytes, np.uint8)).view(dtype).view(shape)
    return torch.empty(shape, dtype=dtype)
