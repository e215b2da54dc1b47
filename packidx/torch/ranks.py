"""Check before the first step that all ranks train on one plan, each on its own share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from packidx.errors import MismatchError
from packidx.torch.dataset import PackedDataset
from packidx.torch.sampler import PackSampler
from packidx.user_code import fingerprint_of

Facts = Mapping[str, Any]

_NAMES = {"snapshot_id": "snapshot", "recipe": "stream", "encoder": "encoder's fingerprint"}


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
    fault = ""
    if sampler.index.id != dataset.index.id:
        fault = f"the sampler has snapshot {sampler.index.id}, the dataset {dataset.index.id}"
    agree(_facts(dataset, sampler), fault)


def agree(facts: Facts, fault: str = "") -> None:
    """Compare facts of all processes of a run, by one all_gather.

    Args:
        facts: `rank` and `world_size`, which say who this process is; all others must be equal.
        fault: why this process cannot go on; the others then stop as well.

    Raises:
        MismatchError: something differs, or a process has a fault; with the same words everywhere.
    """
    gathered: list[Any] = [(facts, fault)]
    together = dist.is_available() and dist.is_initialized()
    if together:
        mine, gathered = gathered[0], [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
    for number, (_, theirs) in enumerate(gathered):
        if theirs:
            raise MismatchError(f"{theirs} (process {number})" if together else theirs)
    if faults := list(_faults([each for each, _ in gathered], together)):
        raise MismatchError(
            f"the ranks do not agree: {'; '.join(faults)}: give all of them the same data, options,"
            " state and encoder, and each its own rank"
        )


def _facts(dataset: PackedDataset, sampler: PackSampler) -> Facts:
    return {
        **sampler.state_dict(),
        "snapshot_id": dataset.index.id,
        "world_size": sampler.world_size,
        "rank": sampler.rank,
        "encoder": fingerprint_of(dataset.encode),
    }


def _faults(gathered: Sequence[Facts], together: bool) -> Iterator[str]:
    first = gathered[0]
    for key in (key for key in first if key != "rank"):
        name = f"the {_NAMES.get(key, key)}"
        other = next((n for n, facts in enumerate(gathered) if facts[key] != first[key]), None)
        if other is not None:
            yield f"{name} {first[key]} on process 0, {gathered[other][key]} on process {other}"
    times = Counter(facts["rank"] for facts in gathered)
    every = {rank: times[rank] for rank in range(first["world_size"])}
    if together and len({*every.values()}) > 1:
        found = ", ".join(f"rank {rank} ({n} processes)" for rank, n in sorted(times.items()))
        yield f"of {first['world_size']} ranks there are {found}"
