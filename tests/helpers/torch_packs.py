"""Encoders for records of `small_packs`, for the tests of packidx.torch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from small_packs import MERGE, Parts

from packidx.torch.joining import SEQUENCE_FILL
from packidx.torch.packs import Pack, Segment

VISION_START, VISION_END, IMAGE, VIDEO = 90, 91, 92, 93
VOCABULARY = 96


class SyntheticEncode:
    """Random ids and pixels drawn from the record's seed; Qwen-VL's shapes.

    Args:
        patch_dim: values per patch.
        rope: None for no positions, ``'rows'`` for mRoPE rows computed here.
        types: return mm_token_type_ids.
    """

    def __init__(self, patch_dim: int = 6, rope: str | None = "rows", types: bool = True) -> None:
        self.patch_dim, self.rope, self.types = patch_dim, rope, types

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(record["seed"])
        ids, types, grids = [], [], []
        for part in record["parts"]:
            if isinstance(part, int):
                ids.append(torch.randint(3, 80, (part,), generator=generator))
                types.append(torch.zeros(part, dtype=torch.long))
                continue
            height, width = part
            tokens = height * width // MERGE**2
            ids.append(torch.tensor([VISION_START, *[IMAGE] * tokens, VISION_END]))
            types.append(torch.tensor([0, *[1] * tokens, 0]))
            grids.append([1, height, width])
        result: dict[str, Any] = {"input_ids": torch.cat(ids)}
        if self.types:
            result["mm_token_type_ids"] = torch.cat(types)
        if grids:
            result["image_grid_thw"] = torch.tensor(grids)
            patches = sum(h * w for _, h, w in grids)
            result["pixel_values"] = torch.randn(patches, self.patch_dim, generator=generator)
        if self.rope:
            result["position_ids"] = mrope(record["parts"])
        return result


class Failing(SyntheticEncode):
    """Raises for some records, counting how often it is asked for them.

    Args:
        keys: of these records.
        error: what is raised.
        times: how often per record; -1 always.
    """

    def __init__(self, keys: set[str], error: Exception, times: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.keys, self.error, self.times = keys, error, times
        self.asked: dict[str, int] = {}

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        key = record["id"]
        self.asked[key] = self.asked.get(key, 0) + 1
        if key in self.keys and (self.times < 0 or self.asked[key] <= self.times):
            raise copy.copy(self.error)  # one that was raised holds what raised it
        return super().__call__(record)


def mrope(parts: Parts) -> torch.Tensor:
    """Rows of Qwen2-VL's scheme: text counts in all rows, an image in its grid."""
    rows, at = [], 0
    for part in parts:
        if isinstance(part, int):
            rows.append((at + torch.arange(part)).expand(3, -1))
            at += part
            continue
        height, width = part[0] // MERGE, part[1] // MERGE
        rows.append(torch.full((3, 1), at))
        grid = torch.stack(
            [
                torch.zeros(height * width, dtype=torch.long),
                torch.arange(height).repeat_interleave(width),
                torch.arange(width).repeat(height),
            ]
        )
        rows.append(grid + at + 1)
        at += 1 + max(height, width)
        rows.append(torch.full((3, 1), at))
        at += 1
    return torch.cat(rows, dim=1)


def pack(
    lengths: list[int],
    *,
    mrope: bool = True,
    slots: list[int] | None = None,
    **tensors: Any,
) -> Pack:
    """A pack as `PackedDataset` returns it, made by hand; media are those of its first sample."""
    slots, ids = slots or lengths, torch.arange(10, 10 + sum(lengths))
    count = [torch.arange(length) for length in lengths]
    three = [own + torch.tensor([[1], [2], [3]]) for own in count]
    samples = [
        {"input_ids": own, "labels": own, "position_ids": positions}
        for own, positions in zip(ids.split(lengths), three if mrope else count, strict=True)
    ]
    for key, value in tensors.items():
        parts = value.split(lengths) if key in SEQUENCE_FILL else [value]
        for sample, part in zip(samples, parts, strict=False):
            sample[key] = part
    numbers = torch.arange(sum(length > 0 for length in lengths))
    segments = [Segment(*each) for each in zip(samples, slots, strict=True)]
    return Pack(3, 0, numbers, torch.zeros_like(numbers), numbers, segments)
