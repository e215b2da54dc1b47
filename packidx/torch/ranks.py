"""Do all ranks train on one plan, each on its own share? Asked once, before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from packidx.errors import MismatchError
from packidx.torch.dataset import PackedDataset
from packidx.torch.sampler import PackSampler

Facts = Mapping[str, Any]

_SHOWN = 8  # values or ranks that an error lists

# What must be the same on all ranks, and its name in the error.
_SAME = {
    "snapshot_id": "the snapshot",
    "seed": "the seed",
    "epoch": "the epoch",
    "position": "the position",
    "global_batch": "the global_batch",
    "world_size": "the world_size",
    "encoder": "the encoder's fingerprint",
}


def check_ranks(
    dataset: PackedDataset, sampler: PackSampler, group: dist.ProcessGroup | None = None
) -> None:
    """Compare what the processes of a run are about to train on.

    All processes of `group` (all processes if None) must call it, after the sampler has taken up
    its state. They need the same snapshot, seed, epoch, position, global batch, world size and
    encoder, and each data-parallel rank must be there, as often as the others: processes that share
    a rank (tensor or pipeline parallel) share its packs. Without a process group only `dataset` and
    `sampler` are compared with each other.

    Raises:
        MismatchError: something differs; on every rank, with the same words.
    """
    gathered: list[Any] = [_facts(dataset, sampler)]
    together = dist.is_available() and dist.is_initialized()
    if together:
        mine, gathered = gathered[0], [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, mine, group=group)
    if faults := list(_faults(gathered, together)):
        raise MismatchError(
            f"the ranks do not agree: {'; '.join(faults)}: give all of them the same INDEX@ID,"
            " options, state and encoder, and each its own rank"
        )


def _facts(dataset: PackedDataset, sampler: PackSampler) -> Facts:
    fingerprint = getattr(dataset.encode, "fingerprint", None)
    return {
        **sampler.state_dict(),
        "snapshot_id": dataset.index.id,
        "order_of": sampler.index.id,
        "world_size": sampler.world_size,
        "rank": sampler.rank,
        "encoder": fingerprint() if callable(fingerprint) else None,
    }


def _faults(gathered: Sequence[Facts], together: bool) -> Iterable[str]:
    for number, facts in enumerate(gathered):
        if facts["order_of"] != facts["snapshot_id"]:
            yield (
                f"the sampler's snapshot {facts['order_of']} on process {number}, whose dataset has"
                f" {facts['snapshot_id']}"
            )
    for key, name in _SAME.items():
        held = _grouped(gathered, key)
        if len(held) > 1:
            yield f"{name} " + _few([f"{value} on {_named(on)}" for value, on in held.items()])
    world_size, held = gathered[0]["world_size"], _grouped(gathered, "rank")
    if together and (len(held) != world_size or len({len(on) for on in held.values()}) > 1):
        shares = [f"rank {rank} on {_named(held[rank])}" for rank in sorted(held)]
        yield f"of {world_size} ranks there are {_few(shares)}"


def _grouped(gathered: Sequence[Facts], key: str) -> dict[Any, list[str]]:
    """Numbers of the processes by what they have under `key`."""
    where: dict[Any, list[str]] = {}
    for number, facts in enumerate(gathered):
        where.setdefault(facts[key], []).append(str(number))
    return where


def _named(numbers: Sequence[str]) -> str:
    return f"process{'es' * (len(numbers) > 1)} {_few(numbers)}"


def _few(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
