"""Media tensors of several samples, or of several packs, joined."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.index import Pack
from packidx.torch.sample.join_rules import Rule, Rules, rule_of

_MAPPED_ANEW = 32 << 20  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX

# Tensors that a model reads only as far as another one says: it takes them filled up with zeros.
_BOUNDED_BY = {
    # LLaVA-NeXT, LLaVA-OneVision: tiles. Pixtral, Mistral 3: height and width.
    "image_sizes": ("pixel_values",),
    # Idefics3, SmolVLM: tiles, of which those of zeros alone are left out.
    "pixel_attention_mask": ("pixel_values", "pixel_attention_mask"),
    # Qwen2.5-Omni, Qwen3-Omni: frames of audio. Inkling: the same, as numbers.
    "feature_attention_mask": ("input_features", "feature_attention_mask"),
    # Gemma 3n and 4, Parakeet: the same, frames first.
    "input_features_mask": ("input_features", "input_features_mask"),
    "audio_input_ids_mask": ("audio_input_ids", "audio_input_ids_mask"),
}


def join_media(
    parts: Sequence[Mapping[str, Tensor]], rules: Rules | None = None
) -> dict[str, Tensor]:
    """The media tensors of several samples, or of several packs, joined as `rule_of` says.

    Where the model is told how much of ``pixel_values`` is real (by ``image_sizes`` or
    ``pixel_attention_mask``) parts of different shapes are filled up with zeros to the largest.

    Args:
        rules: how the encoder says that its own tensors are joined.

    Raises:
        MismatchError: tensors of one name have shapes that do not go together, or hold whole
            numbers that nobody knows how to join.
    """
    keys = list(dict.fromkeys(key for part in parts for key in part))
    fillable = {key for by, names in _BOUNDED_BY.items() if by in keys for key in names}
    joined = {}
    for key in keys:
        tensors = [part[key] for part in parts if key in part]
        rule = rule_of(key, tensors[0], keys, rules)
        if rule.name == "last":
            joined[key] = _join_last(key, tensors)
            continue
        if rule.name == "index":
            tensors = _shifted(key, rule, parts)
        joined[key] = _join(key, tensors, key in fillable)
    return joined


def _shifted(key: str, rule: Rule, parts: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Each part's indices, counted through all parts' rows of the tensor that they index."""
    seen, tensors = 0, []
    for part in parts:
        if key in part:
            if rule.of not in part:
                raise MismatchError(
                    f"encode returned {key}, which counts the rows of {rule.of}, without {rule.of}"
                )
            index = part[key]
            tensors.append(torch.where(index < 0, index, index + seen) if seen else index)
        if rule.of in part:
            seen += math.prod(part[rule.of].shape[: rule.dims])
    return tensors


def _join_last(key: str, tensors: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(tensor.shape[:-1]) for tensor in tensors}
    if len(shapes) > 1:
        raise MismatchError(
            f"encode returned {key} with different shapes {sorted(shapes)} before the last"
            " dimension: samples of one pack must agree in it"
        )
    return tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors), dim=-1)


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


def pair_ids(pack: Pack, happened: Sequence[Mapping[str, Any]]) -> Tensor | None:
    """The number of each sample's pair in its pack, int64 [n]; None where there is no pair.

    The chosen side comes first. -1 is of no pair, or of one of which a side could not be had: a
    hole says nothing of either.

    Raises:
        MismatchError: the plan has a side alone.
    """
    sides = [sample.pair for sample in pack.samples]
    if not any(sides):
        return None
    holes = {event["position"] for event in happened if event["done"] == "hole"}
    ids, number = [-1] * len(sides), 0
    for at, side in enumerate(sides):
        if side is None:
            continue
        if sides[at - (side != "chosen") :][:2] != ["chosen", "rejected"]:
            text = f"pack {pack.pack_id}: sample {pack.samples[at].sample_id} is the {side} side of"
            raise MismatchError(f"{text} a pair that is not whole there: plan again")
        both = {sample.position for sample in pack.samples[at : at + 2]}
        if side == "chosen" and holes.isdisjoint(both):
            ids[at : at + 2] = [number, number]
            number += 1
    return torch.tensor(ids, dtype=torch.int64)


def joined_pair_ids(packs: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """``pair_ids`` of a batch, counted on from pack to pack; nothing where no pack has any."""
    if not any("pair_ids" in pack for pack in packs):
        return {}
    ids, first = [], 0
    for pack in packs:
        own = pack.get("pair_ids")
        if own is None:
            own = torch.full_like(pack["sample_ids"], -1)
        ids.append(torch.where(own >= 0, own + first, own))
        first += int(own.max()) + 1 if len(own) else 0
    return {"pair_ids": torch.cat(ids)}
