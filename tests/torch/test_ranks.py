"""Ranks that would not train on the same plan are told so, all of them, before they begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from trained_packs import Encode, launch, trained_index

from packidx.errors import MismatchError
from packidx.index import open_index
from packidx.plan import plan_packs
from packidx.torch import PackedDataset, PackSampler, check_ranks

pytestmark = pytest.mark.slow


class Named(Encode):
    """An encoder with a fingerprint."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def fingerprint(self) -> str:
        return self.name


def cases(rank: int, first: str, second: str) -> dict[str, tuple[PackedDataset, PackSampler]]:
    """What this rank of two has, by what differs between them."""
    other = second if rank else first
    plain: dict[str, Any] = {"rank": rank, "world_size": 2, "global_batch": 4}

    def pair(path: str, encode: Any = None, **options: Any) -> tuple[PackedDataset, PackSampler]:
        return PackedDataset(path, encode or Encode()), PackSampler(path, **plain | options)

    resumed = pair(first)
    if rank:
        resumed[1].load_state_dict(resumed[1].state_at(1))
    return {
        "nothing": pair(first),
        "parallel": pair(first, rank=0, world_size=1),  # both have all packs, as in tensor parallel
        "snapshot": pair(other),
        "own": (PackedDataset(first, Encode()), PackSampler(other, **plain)),
        "seed": pair(first, seed=rank),
        "epoch": pair(first, epoch=3 * rank),
        "position": resumed,
        "batch": pair(first, global_batch=4 + 2 * rank),
        "worlds": pair(first, rank=0, world_size=1 + rank),
        "ranks": pair(first, rank=0),
        "encode": pair(first, Named(f"encoder-{rank}")),
    }


def work(rank: int, first: str, second: str, out: str) -> None:
    dist.init_process_group("gloo")
    said = {}
    for name, (dataset, sampler) in cases(rank, first, second).items():
        try:
            check_ranks(dataset, sampler)
        except MismatchError as error:
            said[name] = str(error)
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


def test_every_rank_is_told_what_differs(tmp_path: Path) -> None:
    index = trained_index(tmp_path)
    lengths = tmp_path / "lengths"
    plan_packs(lengths, tmp_path / "index", capacity=240, group_by="source", seed=1)
    other = open_index(tmp_path / "index")
    paths = [f"{one.path}@{one.id}" for one in (index, other)]
    launch(work, 2, *paths, str(tmp_path))
    said, same = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert said == same
    expected = {
        "snapshot": f"snapshot {index.id} on process 0, {other.id} on process 1",
        "own": f"the sampler has snapshot {other.id}",
        "seed": "seed 0 on process 0, 1 on process 1",
        "epoch": "epoch 0 on process 0, 3 on process 1",
        "position": "position 0 on process 0, 4 on process 1",
        "batch": "global_batch 4 on process 0, 6 on process 1",
        "worlds": "world_size 1 on process 0, 2 on process 1",
        "ranks": "of 2 ranks there are rank 0 (2 processes)",
        "encode": "fingerprint encoder-0 on process 0, encoder-1 on process 1",
    }
    assert said.keys() == expected.keys()
    for name, words in expected.items():
        assert words in said[name], name


def test_one_process_alone_agrees_with_itself(tmp_path: Path) -> None:
    index = trained_index(tmp_path, num_packs=4)
    dataset = PackedDataset(index, Encode())
    check_ranks(dataset, PackSampler(index, rank=1, world_size=2, global_batch=2))
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=240, seed=1)
    with pytest.raises(MismatchError, match="the sampler has snapshot"):
        check_ranks(dataset, PackSampler(tmp_path / "index", global_batch=1))
