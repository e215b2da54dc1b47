"""Positions of a sample's tokens in three dimensions (mRoPE): time, height, width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mrope_positions(
    length: int, starts: Sequence[int], grids: ArrayLike, merge_size: int
) -> NDArray[np.int64]:
    """Position ids of one sample, as `get_rope_index` of Qwen2-VL, 2.5-VL and 3-VL has for images.

    Text counts on in all three rows alike. A medium's token at row i, column j of its merged grid
    is at (start, start + i, start + j), and the text after it goes on from the grid's longer side
    (Qwen2-VL, arXiv:2409.12191, section 2.1).

    Args:
        length: tokens of the sample, media expanded.
        starts: first token of each medium, ascending.
        grids: patches ``[n, 3]`` (t, h, w) of each medium.
        merge_size: patches per side that make one token.

    Returns:
        int64 ``[3, length]``, starting at 0.
    """
    positions = np.empty((3, length), np.int64)
    token = position = 0
    for start, grid in zip(starts, np.asarray(grids, np.int64).reshape(-1, 3), strict=True):
        text = start - token
        positions[:, token:start] = np.arange(position, position + text)
        position += text
        shape = (int(grid[0]), int(grid[1]) // merge_size, int(grid[2]) // merge_size)
        token = start + shape[0] * shape[1] * shape[2]
        positions[:, start:token] = np.indices(shape).reshape(3, -1) + position
        position += max(shape[1:])
    positions[:, token:] = np.arange(position, position + length - token)
    return positions
