"""Check before the first step that all ranks train on one plan, each on its own share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from packidx.errors import MismatchError
from packidx.torch.dataset import PackedDataset
from packidx.torch.sampler import PackSampler

Facts = Mapping[str, Any]

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


def check_ranks(dataset: PackedDataset, sampler: PackSampler) -> None:
    """Compare what the processes of a run are about to train on.

    All processes must call it, after the sampler has loaded its
    state. They need the same snapshot, seed, epoch, position, global batch, world size and encoder,
    and every data-parallel rank must occur equally often: processes that share a rank (tensor or
    pipeline parallel) share its packs. Without a process group only `dataset` and `sampler` are
    compared with each other.

    Raises:
        MismatchError: something differs; with the same words on every rank.
    """
    gathered: list[Any] = [_facts(dataset, sampler)]
    together = dist.is_available() and dist.is_initialized()
    if together:
        mine, gathered = gathered[0], [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
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


def _faults(gathered: Sequence[Facts], together: bool) -> Iterator[str]:
    first = gathered[0]
    for number, facts in enumerate(gathered):
        if facts["order_of"] != facts["snapshot_id"]:
            yield (
                f"the sampler's snapshot {facts['order_of']} on process {number}, whose dataset has"
                f" {facts['snapshot_id']}"
            )
    for key, name in _SAME.items():
        other = next((n for n, facts in enumerate(gathered) if facts[key] != first[key]), None)
        if other is not None:
            yield f"{name} {first[key]} on process 0, {gathered[other][key]} on process {other}"
    times = Counter(facts["rank"] for facts in gathered)
    every = {rank: times[rank] for rank in range(first["world_size"])}
    if together and len({*every.values()}) > 1:
        found = ", ".join(f"rank {rank} ({n} processes)" for rank, n in sorted(times.items()))
        yield f"of {first['world_size']} ranks there are {found}"
