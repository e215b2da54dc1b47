"""torchtitan's own loader class, forward and backward step, masks and loss, on packs of text."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)

pytest.importorskip("torchtitan.trainer", exc_type=ImportError)

import trainer_packs as real
from torch.nn.attention.flex_attention import create_mask
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.qwen3 import _debugmodel
from torchtitan.trainer import Trainer

from packidx.errors import MismatchError
from packidx.index import Index
from packidx.trainers.torchtitan import PackedDataLoader


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.texts(tmp_path_factory.mktemp("torchtitan"))


def loader_of(index: Index, rank: int = 0, world_size: int = 1) -> PackedDataLoader:
    """As its trainer builds it."""
    config = PackedDataLoader.Config(
        dataset_path=index.path,
        encode=real.Encode(),
        global_batch=real.BATCH,
        epochs=real.EPOCHS,
    )
    ranks = {"dp_rank": rank, "dp_world_size": world_size, "local_batch_size": 1}
    return config.build(**ranks, tokenizer=None, seq_len=real.CAPACITY)  # type: ignore[no-any-return]


def test_its_loader_gives_the_packs_in_order_and_resumes(index: Index) -> None:
    real.check_loader(
        index, loader_of, lambda batches: (inputs["input"][0] for inputs, _ in batches)
    )


def test_media_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="for text alone"):
        list(loader_of(real.pictures(tmp_path)))


def model_of() -> Any:
    config = _debugmodel(attn_backend="flex")
    config.layers = config.layers[:1]
    model = config.build()
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    return model


def trainer_of(model: Any) -> Trainer:
    """The trainer with what its step uses; its own `__init__` starts NCCL."""
    trainer = Trainer.__new__(Trainer)
    trainer.parallel_dims = SimpleNamespace(pp_enabled=False, cp_enabled=False)
    trainer.model_parts, trainer.model_config = [model], model.config
    trainer.config = SimpleNamespace(parallelism=SimpleNamespace(spmd_backend="partial_dtensor"))
    trainer.loss_fn = CrossEntropyLoss.Config().build()
    trainer.train_context, trainer.fwd_bwd_fn = nullcontext, trainer._forward_backward_body
    trainer.ntokens_seen = 0
    return trainer


def dense(q: Any, k: Any, v: Any, *, block_mask: Any, enable_gqa: bool, **others: Any) -> Any:
    """Attention by torchtitan's mask: the kernel of flex attention has no backward on the CPU."""
    mask = create_mask(block_mask.mask_mod, 1, 1, q.shape[-2], k.shape[-2], device="cpu")
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=mask, enable_gqa=enable_gqa), None


def alone(model: Any, sample: dict[str, Any]) -> torch.Tensor:
    """Σ loss of one sample that nothing stands beside."""
    ids, labels = sample["input_ids"][None], sample["labels"][None]
    positions = torch.arange(ids.shape[1])[None]
    masks = model.get_attention_masks(positions=positions)
    logits = model(ids, positions=positions, attention_masks=masks)[0, :-1]
    return torch.nn.functional.cross_entropy(logits.float(), labels[0, 1:], reduction="sum")


def test_its_step_has_the_losses_of_samples_alone(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlexAttention, "compiled_flex_attn", staticmethod(dense))
    models = [model_of(), model_of()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    trainer, batches, packs = trainer_of(models[0]), iter(loader_of(index)), real.ordered(index)
    for step in range(real.STEPS):
        own = [next(batches) for _ in range(real.BATCH)]
        tokens = torch.tensor(sum(int((labels != -100).sum()) for _, labels in own))
        steps = [
            trainer.forward_backward_step(
                input_dict=inputs, labels=labels, global_valid_tokens=tokens
            )
            for inputs, labels in own
        ]
        loss, plain = sum(float(each.detach()) for each in steps), 0.0
        for at in range(real.BATCH):
            for sample in packs[step * real.BATCH + at].samples:
                summed = alone(models[1], sample) / tokens
                summed.backward()
                plain += float(summed.detach())
        assert loss == pytest.approx(plain, abs=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
