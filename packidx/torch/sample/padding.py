"""Pad tokens: at the end of a sample, and as a segment of their own at the end of a pack."""

from __future__ import annotations

import torch
from torch import Tensor

from packidx.torch.sample.encoded import IGNORE, SEQUENCE_FILL, Encoded


def extend(sample: Encoded, length: int, pad_token_id: int) -> Encoded:
    """`sample` followed by pad tokens up to `length`: labels -100, positions that go on counting.

    The pad tokens belong to the sample's segment: they see it, and nothing sees them.
    """
    missing = length - sample.length
    if not missing:
        return sample
    positions = sample.mrope_positions
    if positions is not None:
        begin = int(positions.max()) + 1 if sample.length else 0
        positions = torch.cat([positions, (begin + torch.arange(missing)).expand(3, -1)], dim=1)
    return Encoded(
        _filled(sample.input_ids, missing, pad_token_id),
        _filled(sample.labels, missing, IGNORE),
        positions,
        {
            key: _filled(value, missing, SEQUENCE_FILL[key])
            for key, value in sample.sequence.items()
        },
        sample.media,
    )


def pad_tokens(length: int, pad_token_id: int) -> Encoded:
    """Nothing but pad tokens."""
    ids = torch.full((length,), pad_token_id, dtype=torch.int64)
    return Encoded(ids, torch.full_like(ids, IGNORE), None)


def up_to(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def _filled(values: Tensor, count: int, fill: int) -> Tensor:
    return torch.cat([values, values.new_full((count,), fill)])
