"""Restored at every step, in the loaders people use: the rest of the stream is the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch.utils.data import DataLoader
from trained_packs import Encode, trained_index

from packidx.index import Index
from packidx.torch import Pack, PackedDataset, PackSampler, collate

WORKERS = (0, 1, 3)

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create 3 worker:UserWarning"
    ),  # 2 cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # by torchdata 0.11
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """23 packs: five steps of four, and three left out."""
    index = trained_index(tmp_path_factory.mktemp("restore"), 18)
    assert index.num_packs // 4 == 5 and index.num_packs % 4
    return index


def content(batch: dict[str, Any]) -> list[Any]:
    return [batch["input_ids"].tolist(), batch["labels"].tolist(), batch["position_ids"].tolist()]


def only_id(packs: list[Pack]) -> int:
    return int(packs[0].pack_id)


def make(kind: Any, index: Index, sampler: PackSampler, workers: int, **options: Any) -> Any:
    dataset = PackedDataset(index, Encode())
    options = {"collate_fn": collate, "num_workers": workers} | options
    return kind(dataset, batch_size=1, sampler=sampler, **options)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_restored_at_every_step(index: Index, workers: int) -> None:
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "global_batch": 4, "seed": 7}
        sampler = PackSampler(index, epoch=1, **options)
        running = iter(make(DataLoader, index, sampler, workers))
        whole, states = [], [sampler.state_at(0)]
        for step in range(sampler.num_steps):
            whole += [content(next(running)) for _ in range(2)]
            states.append(json.loads(json.dumps(sampler.state_at(step + 1))))
        with pytest.raises(StopIteration):
            next(running)
        assert len(whole) == 10 and len({str(one) for one in whole}) == 10
        for step, state in enumerate(states):
            restored = PackSampler(index, **options)
            restored.load_state_dict(state)
            rest = [content(batch) for batch in make(DataLoader, index, restored, workers)]
            assert rest == whole[2 * step :]


@pytest.mark.parametrize("workers", WORKERS)
def test_torchdata_restores_at_every_batch(index: Index, workers: int) -> None:
    """Its state is that of the batches it has handed out, whatever its workers have drawn."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    options: dict[str, Any] = {"rank": 1, "world_size": 2, "global_batch": 4}

    def loader() -> Any:
        sampler = PackSampler(index, **options)
        return make(stateful.StatefulDataLoader, index, sampler, workers, collate_fn=only_id)

    running, states, whole = loader(), [], []
    for pack in running:
        whole.append(pack)
        states.append(running.state_dict())
    assert whole == list(PackSampler(index, **options))
    for count, state in enumerate(states[:-1], start=1):
        again = loader()
        again.load_state_dict(state)
        assert list(again) == whole[count:]
