"""Packs in the order of training, under samplers that know nothing of packidx."""

from __future__ import annotations

import pickle

import pytest
from small_packs import make_index, record
from torch.utils.data import DataLoader, DistributedSampler
from torch_packs import SyntheticEncode

from packidx.index import Index
from packidx.torch import OrderedPacks, Pack, PackSampler, collate

BATCH = 8


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    records = [record(n, [20 + n % 9]) for n in range(90)]
    options = {"capacity": 64, "global_batch": BATCH, "micro_steps": 2}
    return make_index(tmp_path_factory.mktemp("ordered"), {"all": records}, **options)


def packs_of(index: Index) -> OrderedPacks:
    return OrderedPacks(index, SyntheticEncode(), BATCH, epochs=3, seed=5)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_plain_sampler_gives_the_packs_of_packsampler(index: Index, world_size: int) -> None:
    ordered = packs_of(index)
    for rank in range(world_size):
        plain = DistributedSampler(ordered, world_size, rank, shuffle=False, drop_last=True)
        sampler = PackSampler(index, rank=rank, world_size=world_size, global_batch=BATCH, seed=5)
        expected = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected += [(epoch, pack) for pack in sampler]
        assert [ordered.pack_number(item) for item in plain] == expected


def test_workers_read_them_and_it_pickles_small(index: Index) -> None:
    ordered = packs_of(index)
    assert len(pickle.dumps(ordered)) < 4000
    loader = DataLoader(ordered, batch_size=2, collate_fn=ids_of, num_workers=2)
    wanted = [ordered.pack_number(item)[1] for item in range(len(ordered))]
    assert [number for batch in loader for number in batch] == wanted
    assert collate([ordered[0]])["input_ids"].shape[0] == 1


def ids_of(packs: list[Pack]) -> list[int]:
    return [pack.pack_id for pack in packs]
