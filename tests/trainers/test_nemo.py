"""NeMo Automodel's own loader, and its recipe's own optimizer step, on packs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)

pytest.importorskip("nemo_automodel.recipes.vlm.finetune", exc_type=ImportError)

import trainer_packs as real
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.recipes._typed_config import RecipeConfig
from nemo_automodel.recipes.vlm.finetune import FinetuneRecipeForVLM

from packidx.index import Index
from packidx.torch import OrderedPacks
from packidx.trainers.nemo import collate_packs


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.pictures(tmp_path_factory.mktemp("nemo"))


def no_processor() -> None:
    return None


def loader_of(index: Index, rank: int = 0, world_size: int = 1) -> Any:
    """As the recipe makes it of its YAML."""
    config = RecipeConfig.resolve_vlm_dataloader(
        {
            "_target_": OrderedPacks,
            "index": index.path,
            "encode": real.Encode(),
            "global_batch": real.BATCH,
            "epochs": real.EPOCHS,
        },
        {"shuffle": False, "collate_fn": {"_target_": collate_packs}},
        processor_node={"_target_": no_processor},
    )
    ranks = {"dp_rank": rank, "dp_world_size": world_size, "batch_size": 1}
    return config.build(pretrained_model_name_or_path="none", **ranks).dataloader


def test_its_loader_gives_the_packs_in_order_and_resumes(index: Index) -> None:
    real.check_loader(
        index, loader_of, lambda batches: (batch["input_ids"][0] for batch in batches)
    )


def recipe_of(model: Any) -> FinetuneRecipeForVLM:
    """The recipe with what its step uses; its `setup` asks for CUDA."""
    recipe = FinetuneRecipeForVLM.__new__(FinetuneRecipeForVLM)
    vars(recipe).update(
        loss_fn=MaskedCrossEntropy(),
        model_parts=[model],
        optimizer=[torch.optim.SGD(model.parameters(), lr=0.1)],
        lr_scheduler=None,
        pp_enabled=False,
        device_mesh=None,
        moe_mesh=None,
        dist_env=SimpleNamespace(device=torch.device("cpu"), is_main=True, rank=0),
        mesh_context=SimpleNamespace(cp_size=1),
        distributed_config=SimpleNamespace(),
        cfg={"clip_grad_norm.backend": "torch"},
        checkpointer=SimpleNamespace(maybe_wait_for_staging=lambda: None),
        step_scheduler=SimpleNamespace(step=0, epoch=0, is_remote_logging_step=False),
        timestamp=0.0,
        processor=None,
        cp_vision_frame_sharding=None,
    )
    return recipe


def test_its_step_has_the_losses_of_plain_pytorch(index: Index) -> None:
    recipe, batches = recipe_of(real.model_of()), iter(loader_of(index))
    losses = []
    for _ in range(real.STEPS):
        step = [next(batches) for _ in range(real.BATCH)]
        losses.append(recipe._run_train_optim_step(step, None).metrics["loss"])
    assert losses == pytest.approx(real.plain_losses(index, real.model_of()), abs=1e-5)
    assert losses[-1] < losses[0]
