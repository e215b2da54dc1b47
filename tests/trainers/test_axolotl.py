"""axolotl's plugin manager, trainer builder and Trainer on packs with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import trainer_packs as real

pytestmark = pytest.mark.filterwarnings("default")  # other people's
pytest.importorskip("axolotl.core.builders.causal", exc_type=ImportError)


def test_axolotl(tmp_path: Path) -> None:
    index = real.pictures(tmp_path)

    def train(folder: str, resume: bool) -> None:
        from axolotl.core.builders.causal import HFCausalTrainerBuilder
        from axolotl.integrations.base import PluginManager
        from axolotl.utils.dict import DictDefault

        from packidx.torch import prepare_model

        cfg = DictDefault(
            {
                "plugins": ["packidx.trainers.axolotl.PackedPlugin"],
                "packidx": {"index": str(index.path), "processor": real.Encode()},
                "output_dir": folder,
                "micro_batch_size": 1,
                "gradient_accumulation_steps": real.BATCH,
                "num_epochs": real.EPOCHS,
                "max_steps": real.STEPS,
                "learning_rate": 0.1,
                "optimizer": "sgd",
                "lr_scheduler": "constant",
                "max_grad_norm": 0.0,
                "weight_decay": 0.0,
                "save_steps": real.SAVED,
                "save_strategy": "steps",
                "logging_steps": 1,
                "curriculum_sampling": True,
                "remove_unused_columns": False,
                "use_cpu": True,
                "val_set_size": 0,
                "bf16": False,
                "sequence_len": real.CAPACITY,
                "model_config_type": "qwen2_5_vl",
                "base_model": "-",
            }
        )
        manager = PluginManager.get_instance()
        manager.register(cfg.plugins[0])
        meta = manager.load_datasets(cfg)
        model = prepare_model(real.model_of())
        builder = HFCausalTrainerBuilder(cfg, model, real.tokenizer(), None)
        builder.train_dataset = meta.train_dataset
        trainer: Any = builder.build(meta.total_num_steps)
        trainer.train(resume_from_checkpoint=resume)

    real.check(train, index, tmp_path)
