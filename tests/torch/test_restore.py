"""Restored at every batch by torchdata: the rest of the stream is the same."""

from __future__ import annotations

from typing import Any

import pytest
from trained_packs import Encode, trained_index

from packidx.index import Index
from packidx.torch import Pack, PackedDataset, PackSampler

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


def only_id(packs: list[Pack]) -> int:
    return int(packs[0].pack_id)


@pytest.mark.parametrize("workers", WORKERS)
def test_torchdata_restores_at_every_batch(index: Index, workers: int) -> None:
    """Its state is that of the batches it has handed out, whatever its workers have drawn."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    options: dict[str, Any] = {"rank": 1, "world_size": 2, "global_batch": 4}

    def loader() -> Any:
        dataset, sampler = PackedDataset(index, Encode()), PackSampler(index, **options)
        return stateful.StatefulDataLoader(
            dataset, batch_size=1, sampler=sampler, collate_fn=only_id, num_workers=workers
        )

    running, states, whole = loader(), [], []
    for pack in running:
        whole.append(pack)
        states.append(running.state_dict())
    assert whole == list(PackSampler(index, **options))
    for count, state in enumerate(states[:-1], start=1):
        again = loader()
        again.load_state_dict(state)
        assert list(again) == whole[count:]
