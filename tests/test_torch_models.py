"""Real models: packed logits are those of the samples alone, unless isolation is broken."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from torch_packs import (
    IMAGE,
    VIDEO,
    VISION_END,
    VISION_START,
    VOCABULARY,
    SyntheticEncode,
    make_index,
    record,
)

from packidx.torch import PackedDataset, collate

RECORDS = [
    record(1, [5, (4, 6), 7, (8, 4), 6]),
    record(2, [9]),
    record(3, [1]),
    record(4, [2, (4, 4), (2, 8), 11]),
    record(5, [4, (6, 6), 3]),
]
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
}
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


@cache
def tiny(family: str, attention: str) -> Any:
    """A random model with two layers whose every weight matters."""
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
    }
    vision |= {"out_hidden_size": 32, "patch_size": 4, "temporal_patch_size": 2}
    vision |= {"spatial_merge_size": 2}
    if family == "qwen2_5_vl":
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        config = transformers.Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision, **TOKENS)
        kind = transformers.Qwen2_5_VLForConditionalGeneration
    else:
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        text = {**TEXT, "head_dim": 8}
        config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **TOKENS)
        kind = transformers.Qwen3VLForConditionalGeneration
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # the default init is so small that a leak would hardly show
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15, generator=generator)
    return model


class ModelEncode(SyntheticEncode):
    """Positions as the model itself computes them for the sample alone."""

    def __init__(self, model: Any) -> None:
        super().__init__(patch_dim=3 * 2 * 4 * 4, rope=None)
        self.model = model

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        result = super().__call__(record)
        ids, types = result["input_ids"][None], result["mm_token_type_ids"][None]
        grid = result.get("image_grid_thw")
        rows, _ = self.model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grid)
        result["position_ids"] = rows[:, 0]
        return result


def alone(model: Any, one: dict[str, Any]) -> torch.Tensor:
    """Logits of one sample, computed in the plainest way there is."""
    encoded = ModelEncode(model)(one)
    inputs = {key: encoded[key] for key in ("pixel_values", "image_grid_thw") if key in encoded}
    inputs["input_ids"] = encoded["input_ids"][None]
    inputs["mm_token_type_ids"] = encoded["mm_token_type_ids"][None]
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits[0]
    return logits


def worst_difference(model: Any, packs: list[dict[str, Any]], batch: dict[str, Any]) -> float:
    """Largest difference between the packed logits and those of each sample alone."""
    with torch.no_grad():
        logits = model(**batch).logits
    worst, samples = 0.0, 0
    for row, pack in enumerate(packs):
        bounds = pack["cu_seqlens"].tolist()
        for at, sample_id in enumerate(pack["sample_ids"].tolist()):
            mine = logits[row, bounds[at] : bounds[at + 1]]
            worst = max(worst, float((mine - alone(model, RECORDS[sample_id])).abs().max()))
            samples += 1
    assert samples == sum(len(pack["sample_ids"]) for pack in packs) > 1
    assert logits.std() > 0.5
    return worst


MODELS = [
    (family, attention) for family in ("qwen2_5_vl", "qwen3_vl") for attention in ("sdpa", "eager")
]


@pytest.fixture(params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(*request.param)


def dataset_of(folder: Path, model: Any, capacity: int) -> PackedDataset:
    index = make_index(folder, {"all": RECORDS}, capacity=capacity)
    return PackedDataset(index, ModelEncode(model))


def test_one_pack_of_all_samples(tmp_path: Path, model: Any) -> None:
    dataset = dataset_of(tmp_path, model, 128)
    (pack,) = [dataset[k] for k in range(len(dataset))]
    assert len(pack["sample_ids"]) == 5 and len(pack["image_grid_thw"]) == 5
    assert worst_difference(model, [pack], collate(pack)) < 1e-5


def test_rows_of_several_packs(tmp_path: Path, model: Any) -> None:
    dataset = dataset_of(tmp_path, model, 45)
    packs = [dataset[k] for k in range(len(dataset))]
    assert len(packs) > 1 and len({len(pack["input_ids"]) for pack in packs}) > 1
    assert worst_difference(model, packs, collate(packs)) < 1e-5


def test_flash_arguments_say_the_same_as_the_positions(tmp_path: Path, model: Any) -> None:
    """No flash kernel runs on a CPU, but the models must accept its arguments."""
    dataset = dataset_of(tmp_path, model, 45)
    packs = [dataset[k] for k in range(len(dataset))]
    batch = collate(packs, "flash")
    starts = (batch["position_ids"][0, 0] == 0).nonzero().flatten().tolist()
    assert batch["cu_seq_lens_q"].tolist() == [*starts, batch["input_ids"].shape[1]]
    ends = torch.cat([pack["cu_seqlens"].diff() for pack in packs]).cumsum(0)
    whole = {
        "cu_seqlens": torch.cat([ends.new_zeros(1), ends]),
        "sample_ids": torch.cat([pack["sample_ids"] for pack in packs]),
    }
    assert worst_difference(model, [whole], batch) < 1e-5


def restart_nowhere(batch: dict[str, Any]) -> None:
    batch["position_ids"][0] = torch.arange(batch["input_ids"].shape[1])


def leave_the_cache_on(batch: dict[str, Any]) -> None:
    del batch["use_cache"]


def only_mrope_rows(batch: dict[str, Any]) -> None:
    batch["position_ids"] = batch["position_ids"][1:]


def mask_of_ones(batch: dict[str, Any]) -> None:
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])


def mrope_of_the_whole_pack(batch: dict[str, Any]) -> None:
    batch["position_ids"][1:] += torch.arange(batch["input_ids"].shape[1])


BREAKS = [
    restart_nowhere,
    leave_the_cache_on,
    only_mrope_rows,
    mask_of_ones,
    mrope_of_the_whole_pack,
]


@pytest.mark.parametrize("broken", BREAKS)
def test_broken_isolation_shows(tmp_path: Path, model: Any, broken: Any) -> None:
    """Guards the tests above: each of these mistakes must be far outside their tolerance."""
    dataset = dataset_of(tmp_path, model, 128)
    pack = dataset[0]
    batch = collate(pack)
    batch["position_ids"] = batch["position_ids"].clone()
    broken(batch)
    assert worst_difference(model, [pack], batch) > 1e-3


def test_samples_do_not_depend_on_their_neighbours(tmp_path: Path, model: Any) -> None:
    """Nor on what stands in the padding."""
    dataset = dataset_of(tmp_path, model, 45)
    packs = [dataset[k] for k in range(len(dataset))]
    with torch.no_grad():
        one = model(**collate(packs, pad_token_id=0)).logits
        other = model(**collate(packs, pad_token_id=77)).logits
    for row, pack in enumerate(packs):
        length = len(pack["input_ids"])
        assert torch.equal(one[row, :length], other[row, :length])


@pytest.mark.parametrize("shift", [False, True])
def test_loss_is_the_mean_over_all_label_tokens(tmp_path: Path, model: Any, shift: bool) -> None:
    """Packed loss = token-weighted mean of the samples' own, whoever shifts the labels."""
    index = make_index(tmp_path, {"all": [*RECORDS[:2], *RECORDS[3:]]}, capacity=128, shift=shift)
    dataset = PackedDataset(index, ModelEncode(model))
    (pack,) = [dataset[k] for k in range(len(dataset))]
    total, count = 0.0, 0
    for one in (*RECORDS[:2], *RECORDS[3:]):
        logits = alone(model, one)
        ids = ModelEncode(model)(one)["input_ids"]
        total += float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum"))
        count += len(ids) - 1
    with torch.no_grad():
        loss = float(model(**collate(pack)).loss)
    assert count == int((pack["labels"] != -100).sum())
    assert loss == pytest.approx(total / count, abs=1e-5)


def test_a_text_model_with_plain_positions(tmp_path: Path) -> None:
    config = transformers.Qwen2Config(**{k: v for k, v in TEXT.items() if k != "rope_parameters"})
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    records = [record(n, [5 + 3 * n]) for n in range(4)]
    index = make_index(tmp_path, {"all": records}, capacity=30)
    encode = SyntheticEncode(rope=None, types=False)
    dataset = PackedDataset(index, encode)
    packs = [dataset[k] for k in range(len(dataset))]
    batch = collate(packs)
    assert batch["position_ids"].shape == batch["input_ids"].shape
    with torch.no_grad():
        logits = model(**batch).logits
    for row, pack in enumerate(packs):
        bounds = pack["cu_seqlens"].tolist()
        for at, sample_id in enumerate(pack["sample_ids"].tolist()):
            ids = encode(records[sample_id])["input_ids"]
            with torch.no_grad():
                own = model(input_ids=ids[None]).logits[0]
            assert (logits[row, bounds[at] : bounds[at + 1]] - own).abs().max() < 1e-5
    assert max(len(pack["sample_ids"]) for pack in packs) > 1
