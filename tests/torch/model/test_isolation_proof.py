"""Packed = separate: logits, loss and gradients, for six families, and every way to break it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    FAMILIES,
    alone,
    encoded_samples,
    fresh,
    packs_of,
    tiny,
    worst_difference,
)
from torch_packs import IMAGE

from packidx.torch import collate
from packidx.torch.isolation import IsolationError, check_isolation
from packidx.torch.packs import Segment
from packidx.torch.prepare import prepare_model

TOLERANCE = 1e-5
MROPE = [family for family in FAMILIES if family.endswith("_vl")]
VISION = [family for family in FAMILIES if family != "qwen3"]


def model_of(family: str, attention: str = "sdpa") -> Any:
    return prepare_model(tiny(family, attention))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_loss_and_gradients(tmp_path: Path, family: str, attention: str) -> None:
    model = model_of(family, attention)
    (pack,) = packs_of(tmp_path, family)
    assert len(pack.samples) == (3 if family == "qwen3" else 4)
    output = model(**collate(pack))
    assert worst_difference(model, family, [pack], output.logits.detach()) < TOLERANCE
    packed = gradients(model, output.loss)
    total = int((pack.joined()["labels"] != -100).sum())
    loss = torch.zeros(())
    for encoded in encoded_samples(family, pack):
        share = (len(encoded["input_ids"]) - 1) / total
        loss = loss + alone(model, encoded).loss * share
    assert float(output.loss.detach()) == pytest.approx(float(loss.detach()), abs=TOLERANCE)
    separate = gradients(model, loss)
    assert packed.keys() == separate.keys()
    worst = max(float((packed[name] - separate[name]).abs().max()) for name in packed)
    assert worst < TOLERANCE
    assert max(float(gradient.abs().max()) for gradient in packed.values()) > 0.01
    if family in VISION:
        assert any("vision" in name or "visual" in name for name in packed)


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: one for name, one in zip(named, found, strict=True) if one is not None}


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
@pytest.mark.parametrize("family", FAMILIES)
def test_several_packs(tmp_path: Path, family: str, attention: str) -> None:
    """As padded rows, and all in one row; no flash kernel runs here, but its arguments do."""
    model = model_of(family)
    packs = packs_of(tmp_path, family, 30 if family == "qwen3" else 45)
    assert len(packs) > 1
    with torch.no_grad():
        logits = model(**collate(packs, attention)).logits
    assert worst_difference(model, family, packs, logits) < TOLERANCE


def cache_on(batch: dict[str, Any]) -> None:
    batch["use_cache"] = True


def no_restart(batch: dict[str, Any]) -> None:
    length = torch.arange(batch["input_ids"].shape[1])
    if batch["position_ids"].ndim == 3:
        batch["position_ids"][0] = length
    else:
        batch["position_ids"][:] = length


def mask_of_ones(batch: dict[str, Any]) -> None:
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])


def mrope_rows_only(batch: dict[str, Any]) -> None:
    batch["position_ids"] = batch["position_ids"][1:]


def images_of_another_sample(batch: dict[str, Any]) -> None:
    batch["pixel_values"] = batch["pixel_values"].flip(0)


def no_token_types(batch: dict[str, Any]) -> None:
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])


BREAKS: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    *((family, broken) for family in FAMILIES for broken in (no_restart, mask_of_ones)),
    # Gemma 3's hook makes its masks whether there is a cache or not.
    *((family, cache_on) for family in FAMILIES if family != "gemma3"),
    *((family, mrope_rows_only) for family in MROPE),
    *((family, images_of_another_sample) for family in VISION),
    ("gemma3", no_token_types),
]


@pytest.mark.parametrize(
    ("family", "broken"), BREAKS, ids=lambda one: getattr(one, "__name__", one)
)
def test_each_break_shows_and_is_found(tmp_path: Path, family: str, broken: Any) -> None:
    shows_and_is_found(tmp_path, family, broken)


def shows_and_is_found(folder: Path, family: str, broken: Any) -> None:
    """A batch that is `broken` has other logits than its samples alone, and the check says so."""
    model = model_of(family)
    (pack,) = packs_of(folder, family)

    def broken_collate(pack: Any) -> dict[str, Any]:
        batch = {key: copy.copy(value) for key, value in collate(pack).items()}
        batch["position_ids"] = batch["position_ids"].clone()
        broken(batch)
        return batch

    with torch.no_grad():
        logits = model(**broken_collate(pack)).logits
    assert worst_difference(model, family, [pack], logits) > 1e-2
    with pytest.raises(IsolationError, match=r"pack 0, sample \d at position \d: its logits"):
        check_isolation(model, pack, collate=broken_collate)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "gemma3"])
def test_alignment_padding_changes_nothing(tmp_path: Path, family: str) -> None:
    (pack,) = packs_of(tmp_path, family, align=8, pad_pack_to=16)
    joined = pack.joined()
    slots, lengths = joined["cu_seqlens"].diff(), joined["lengths"]
    assert (slots % 8 == 0).all() and (lengths < slots).any()
    assert check_isolation(model_of(family), pack) < TOLERANCE
    alone = [each.joined()["cu_seqlens"].tolist() for each in pack.alone()]
    assert alone == [[0, length] for length in lengths[: len(alone)].tolist()]
    packed = collate(pack, "flash")
    with torch.no_grad():
        logits = model_of(family)(**packed).logits
    assert worst_difference(model_of(family), family, [pack], logits) < TOLERANCE


def test_gemma3_needs_its_hook(tmp_path: Path) -> None:
    """Unprepared, its sliding layers put the first sample's image blocks into every sample."""
    (pack,) = packs_of(tmp_path, "gemma3")
    model = fresh("gemma3")
    with torch.no_grad():
        logits = model(**collate(pack)).logits
    assert worst_difference(model, "gemma3", [pack], logits) > 1e-2
    with pytest.raises(IsolationError, match="was not given to prepare_model"):
        check_isolation(model, pack)
    assert check_isolation(prepare_model(model), pack) < TOLERANCE


def test_gemma3_images_that_touch_across_samples(tmp_path: Path) -> None:
    """One sample ends with an image and the next begins with one: two blocks, not one."""
    model = model_of("gemma3")
    (pack,) = packs_of(tmp_path, "gemma3")
    ids = torch.tensor([5, 6, *[IMAGE] * 4, *[IMAGE] * 4, 7, 8])
    types = (ids == IMAGE).long()
    parts = zip(ids.split(6), types.split(6), pack.joined()["pixel_values"], strict=False)
    samples = [
        {
            "input_ids": own,
            "labels": own,
            "position_ids": torch.arange(6),
            "token_type_ids": kinds,
            "pixel_values": pixels[None],
        }
        for own, kinds, pixels in parts
    ]
    pack.sample_ids = pack.source_ids = torch.arange(2)
    pack.segments = [Segment(sample, 6) for sample in samples]
    assert check_isolation(model, pack) < TOLERANCE
