"""A mixture of experts learns from tokens alone, however much padding a batch has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from small_packs import make_index, record
from tiny_models import (
    MROPE,
    QWEN_RECORDS,
    QWEN_TOKENS,
    QWEN_VISION,
    TEXT,
    TinyEncode,
)
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch import Pack, PackedDataset, collate
from packidx.torch.packs import Segment
from packidx.torch.prepare import prepare_model

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
SPARSE = {**TEXT, **EXPERTS, "moe_intermediate_size": 24, "router_aux_loss_coef": 0.1}
TEXTS = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "granitemoe")


def sparse_model(model_type: str, attention: str = "sdpa") -> Any:
    """A tiny mixture of experts in float64, which returns its router's logits."""
    if model_type == "qwen3_vl_moe":
        vision = {**QWEN_VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        text = {**SPARSE, **MROPE, "output_router_logits": True}
        config: Any = transformers.Qwen3VLMoeConfig(
            text_config=text, vision_config=vision, **QWEN_TOKENS
        )
        kind: Any = transformers.Qwen3VLMoeForConditionalGeneration
    else:
        config = transformers.AutoConfig.for_model(model_type, **SPARSE, output_router_logits=True)
        kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    torch.manual_seed(0)
    config.get_text_config()._experts_implementation = "eager"  # others take no float64
    model = kind._from_config(config, attn_implementation="sdpa").double().train()
    config.get_text_config()._attn_implementation = attention
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15, generator=torch.Generator().manual_seed(1))
    return prepare_model(model)


def sparse_packs(folder: Path, model_type: str, model: Any, **options: Any) -> list[Pack]:
    family = "qwen3_vl" if model_type == "qwen3_vl_moe" else "qwen3"
    texts = [record(number, [5 + 7 * number]) for number in range(5)]
    records = QWEN_RECORDS if family == "qwen3_vl" else texts
    index = make_index(folder, {"all": records}, capacity=48, **options)
    packs = list(PackedDataset(index, TinyEncode(family, model)))
    for pack in packs:
        for segment in pack.segments:
            if "pixel_values" in segment.tensors:
                segment.tensors["pixel_values"] = segment.tensors["pixel_values"].double()
    return packs


def without_padding(packs: list[Pack]) -> Pack:
    """The samples of all packs as one pack, in a row without padding."""
    samples = [sample for pack in packs for sample in pack.samples]
    numbers = torch.cat([pack.sample_ids for pack in packs])
    return replace(
        packs[0],
        sample_ids=numbers,
        source_ids=torch.zeros_like(numbers),
        positions=torch.arange(len(numbers)),
        segments=[Segment(sample, len(sample["input_ids"])) for sample in samples],
    )


def learn(model: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """Loss, auxiliary loss, tokens of each layer's experts, and all gradients in one vector."""
    model.zero_grad()
    out = model(**batch)
    out.loss.backward()
    chosen = [
        logits.topk(2).indices.flatten().bincount(minlength=4) for logits in out.router_logits
    ]
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return {
        "loss": out.loss.detach(),
        "auxiliary": out.aux_loss.detach(),
        "experts": torch.stack(chosen).double(),
        "gradients": torch.cat(gradients),
    }


@pytest.mark.parametrize("options", [{}, {"align": 8, "pad_pack_to": 16}], ids=["rows", "aligned"])
@pytest.mark.parametrize("model_type", ["qwen3_vl_moe", *TEXTS])
def test_padding_does_not_teach_the_router(
    model_type: str, options: dict[str, int], tmp_path: Path
) -> None:
    model = sparse_model(model_type)
    packs = sparse_packs(tmp_path, model_type, model, **options)
    batch = collate(packs)
    assert batch["padding_mask"].any(), "there is padding to leave out"
    padded, bare = learn(model, batch), learn(model, collate([without_padding(packs)]))
    for name, value in bare.items():
        assert padded[name].shape == value.shape, name
        assert float((padded[name] - value).abs().max()) <= 1e-6, name
    tokens = sum(len(sample["labels"]) for pack in packs for sample in pack.samples)
    assert int(bare["experts"].sum()) == 2 * 2 * tokens  # two layers, two experts a token


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own
@pytest.mark.parametrize("model_type", ["qwen3_vl_moe", "mixtral"])
def test_a_block_mask_leaves_the_router_loss_alone(model_type: str, tmp_path: Path) -> None:
    torch._dynamo.reset()  # no shapes of other tests, which would make these dynamic
    model = sparse_model(model_type, "flex_attention").float()
    packs = sparse_packs(tmp_path, model_type, model, align=8)
    with torch.no_grad():  # a CPU runs flex_attention forwards alone
        flex, bare = (
            model(**_in_float32(collate(each, "flex")))
            for each in (packs, [without_padding(packs)])
        )
    assert float((flex.aux_loss - bare.aux_loss).abs()) <= 1e-6
    assert float((flex.loss - bare.loss).abs()) <= 1e-6


def _in_float32(batch: dict[str, Any]) -> dict[str, Any]:
    pixels = {k: v.float() for k, v in batch.items() if k == "pixel_values"}
    return {**batch, **pixels}


@pytest.mark.parametrize("attention", ["sdpa", "flex", "flash"])
def test_every_layout_tells_padding_from_tokens(attention: str, tmp_path: Path) -> None:
    packs = sparse_packs(tmp_path, "mixtral", None, align=8, pad_pack_to=16)
    batch = collate(packs, attention)
    tokens = sum(len(sample["input_ids"]) for pack in packs for sample in pack.samples)
    assert int((~batch["padding_mask"]).sum()) == tokens
    assert (batch["labels"][batch["padding_mask"]] == -100).all()
    assert "padding_mask" not in collate([without_padding(packs)], attention)


def test_router_logits_of_another_shape_are_refused(tmp_path: Path) -> None:
    model = sparse_model("mixtral")
    packs = sparse_packs(tmp_path, "mixtral", model)
    batch = collate(packs)
    batch["padding_mask"] = batch["padding_mask"][:, 1:]
    with pytest.raises(MismatchError, match="padding cannot be left out"):
        model(**batch)
