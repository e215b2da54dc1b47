"""Which samples of packs and batches are the two sides of one preference pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.index import Pack


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
