"""Positions of a sample's tokens in three dimensions (mRoPE): time, height, width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from packidx.arrays import Int64s
from packidx.encode.imports import transformers_class
from packidx.encode.positions import rope_index
from packidx.processor.assemble import ProcessorFiles

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MropeMedium:
    """One image or video in a sample."""

    starts: Sequence[int]
    """First token of each run of its feature tokens: one for all, or one for each of the t."""
    grid: tuple[int, int, int]
    """(t, h, w) in patches before merging."""
    interval: float = 1.0
    """Positions from one of the t to the next, where they follow one another in one run: 1, and in
    Qwen2.5-VL's videos the model's ``tokens_per_second`` times ``second_per_grid_ts``."""


def mrope_positions(length: int, media: Sequence[MropeMedium], merge_size: int) -> Int64s:
    """Position ids of one sample, as `get_rope_index` of Qwen2-VL, 2.5-VL and 3-VL has them.

    Text counts on in all three rows alike. A medium's token at time k, row i, column j of its
    merged grid is at (start + ⌊k * interval⌋, start + i, start + j), and the text after it goes on
    from the grid's longer side (Qwen2-VL, arXiv:2409.12191, section 2.1). Where text stands between
    a video's frames (Qwen3-VL), each frame is a medium by itself.

    Args:
        length: tokens of the sample, media expanded.
        media: in order.
        merge_size: patches per side that make one token.

    Returns:
        int64 ``[3, length]``, starting at 0.
    """
    positions = np.empty((3, length), np.int64)
    token = position = 0
    for start, shape, interval in _blocks(media, merge_size):
        text = start - token
        positions[:, token:start] = np.arange(position, position + text)
        position += text
        token = start + shape[0] * shape[1] * shape[2]
        block = np.indices(shape)
        # In float32, as torch multiplies whole numbers by a float.
        block[0] = (block[0].astype(np.float32) * np.float32(interval)).astype(np.int64)
        positions[:, start:token] = block.reshape(3, -1) + position
        position += max(shape[1:])
    positions[:, token:] = np.arange(position, position + length - token)
    return positions


def _blocks(
    media: Sequence[MropeMedium], merge_size: int
) -> Iterator[tuple[int, tuple[int, int, int], float]]:
    """First token, merged grid and interval of each run."""
    for medium in media:
        times, height, width = (int(side) for side in medium.grid)
        sides = height // merge_size, width // merge_size
        if len(medium.starts) == 1:
            yield int(medium.starts[0]), (times, *sides), medium.interval
        else:
            for _, start in zip(range(times), medium.starts, strict=True):
                yield int(start), (1, *sides), 1.0


def video_positions(
    sample: Mapping[str, torch.Tensor],
    files: ProcessorFiles,
    ids: Mapping[str, int],
    tokens_per_second: float,
) -> torch.Tensor:
    """Positions of one sample by the installed release's own `get_rope_index`.

    Releases do not agree on it. Up to 5.0 the text after a video of Qwen2-VL or Qwen2.5-VL goes on
    after its last time, from 5.6 on from the longer side of its grid; up to 5.11 Qwen2.5-VL's
    seconds are cut to whole numbers. A model is to be trained on what its own release gives it.

    Args:
        sample: its ``input_ids`` ``[T]`` and the image and video processors' tensors.
        files: of a family with a ``rope_model``.
        ids: of the tokens that stand for images and videos, by kind.
        tokens_per_second: of Qwen2.5-VL's videos.

    Returns:
        int64 ``[3, T]``, starting at 0.
    """
    vision = files.vision
    assert vision is not None and vision.rope_model is not None and files.tokenizer is not None
    # A whole number, as configurations have it: 5.11 puts no others where positions are.
    is_whole = float(tokens_per_second).is_integer()
    per_second = int(tokens_per_second) if is_whole else tokens_per_second
    config = SimpleNamespace(
        image_token_id=ids["image"],
        video_token_id=ids["video"],
        vision_start_token_id=files.tokenizer.token_to_id("<|vision_start|>"),
        vision_config=SimpleNamespace(
            spatial_merge_size=vision.mrope_merge_size, tokens_per_second=per_second
        ),
    )
    return rope_index(transformers_class(vision.rope_model), config, None, sample)
