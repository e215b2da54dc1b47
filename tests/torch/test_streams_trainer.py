"""A stream under transformers' Trainer and torchdata: its own packs, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from trained_packs import CAPACITY, Encode, tiny_model, trained_index

from packidx.torch import StreamingPackedDataset, StreamLoader, collate

pytestmark = pytest.mark.slow


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    trained_index(tmp_path, num_packs=16)
    return tmp_path / "lengths"


def stream_of(lengths: Path) -> StreamingPackedDataset:
    return StreamingPackedDataset(lengths, Encode(), CAPACITY, lanes=2)


def test_the_trainer_trains_on_the_packs_of_the_stream(lengths: Path, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    seen: list[list[int]] = []

    class Streamed(Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            return loader  # not through accelerator.prepare: it deals to ranks once more

        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            seen.append(inputs["input_ids"].flatten().tolist())
            return super().training_step(model, inputs, *more)

    loader = StreamLoader(stream_of(lengths), num_workers=2)
    arguments = TrainingArguments(
        str(tmp_path / "run"),
        max_steps=6,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        save_strategy="no",
    )
    Streamed(tiny_model(), arguments, train_dataset=loader.stream).train()
    packs = [collate([pack])["input_ids"].flatten().tolist() for pack in stream_of(lengths)]
    assert seen == packs[:6]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:Neither dataset nor iter")  # what was read is read once more
def test_torchdatas_loader_goes_on_where_it_was(lengths: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")

    def loader() -> Any:
        options = {"batch_size": 1, "collate_fn": ids_of, "num_workers": 2}
        return stateful.StatefulDataLoader(stream_of(lengths), **options)

    whole = list(loader())
    begun = loader()
    packs = iter(begun)
    first = [next(packs) for _ in range(5)]
    going_on = loader()
    going_on.load_state_dict(begun.state_dict())
    assert first + list(going_on) == whole


def ids_of(packs: list[Any]) -> list[Any]:
    return [(pack.pack_id, pack.sample_ids.tolist()) for pack in packs]
