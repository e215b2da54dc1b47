"""transformers' Trainer and TRL's SFTTrainer on packs with images."""

from __future__ import annotations

from pathlib import Path

import pytest
import trainer_packs as real

from packidx.index import Index
from packidx.torch import as_hf_dataset, collate, prepare_model

pytestmark = pytest.mark.filterwarnings("default")  # other people's


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.pictures(tmp_path_factory.mktemp("huggingface"))


def test_sft_trainer(index: Index, tmp_path: Path) -> None:
    pytest.importorskip("trl", exc_type=ImportError)

    def train(folder: str, resume: bool) -> None:
        from trl import SFTConfig, SFTTrainer

        from packidx.trainers.huggingface import TrainsOnPacks

        class PackedSFTTrainer(TrainsOnPacks, SFTTrainer):
            pass

        args = SFTConfig(
            folder,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            **real.SETTINGS,
        )
        model = prepare_model(real.model_of())
        trainer = PackedSFTTrainer(
            model,
            args,
            data_collator=collate,
            train_dataset=as_hf_dataset(real.ordered(index)),
            processing_class=real.tokenizer(),
        )
        trainer.train(resume_from_checkpoint=resume)

    real.check(train, index, tmp_path)
