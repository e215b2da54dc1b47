"""Packs of tiny models under this release of transformers: samples stay apart, and leaks show.

The proofs are those of the newest release; their files run under it with more cases.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import test_isolation_flex as flex
import test_isolation_proof as proof
import test_models as models
import test_trainer as trainers
import torch
import transformers
from plain_flash import NAME, plain_flash, use_flash
from tiny_models import FAMILIES, fresh, video_pack
from torch_packs import VIDEO
from trained_packs import Encode, largest_difference, one_loop, trained_index

from packidx.errors import MismatchError
from packidx.torch import PackedDataset, check_isolation, prepare_model
from packidx.torch.loss import WEIGHTS

TOLERANCE = 1e-5
QWEN = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]

test_packed_logits_loss_and_gradients_are_those_of_samples = proof.test_logits_loss_and_gradients
test_several_packs = proof.test_several_packs
test_gemma3_images_that_touch = proof.test_gemma3_images_that_touch_across_samples

kernel = models.kernel
test_flash = models.test_samples_stay_apart

uncompiled = flex.uncompiled
test_flex = flex.test_logits

LEAKS = [
    *((family, proof.cache_on) for family in FAMILIES if family != "gemma3"),
    *((family, proof.mask_of_ones) for family in FAMILIES),
    *((family, proof.mrope_rows_only) for family in QWEN),
    ("gemma3", proof.no_token_types),
]


@pytest.mark.parametrize(("family", "broken"), LEAKS, ids=lambda one: getattr(one, "__name__", one))
def test_leaks_show_and_are_found(tmp_path: Path, family: str, broken: Any) -> None:
    proof.shows_and_is_found(tmp_path, family, broken)


@pytest.mark.parametrize("family", QWEN)
@pytest.mark.parametrize("attention", ["sdpa", "eager", NAME])
def test_videos_stay_apart(family: str, attention: str) -> None:
    model, pack = fresh(family, "eager" if attention == "eager" else "sdpa"), video_pack(family)
    assert all(VIDEO in sample["input_ids"] for sample in pack.samples)
    with plain_flash():
        by_flash = attention == NAME
        prepare_model(use_flash(model) if by_flash else model)
        mode = "flash" if by_flash else "sdpa"
        assert check_isolation(model, pack, attention=mode) < TOLERANCE


def test_a_step_of_the_trainer_is_that_of_one_loop(tmp_path: Path) -> None:
    """Nobody divides a loss by the accumulation that the step's denominator has divided already."""
    trained_index(tmp_path)
    path = str(tmp_path / "index")
    trainers.one_step(0, 1, path, str(tmp_path))
    for name in WEIGHTS:
        expected, loss = one_loop(PackedDataset(path, Encode()), name)
        (found,), losses = torch.load(tmp_path / f"{name}-1-0.pt")
        assert largest_difference(found, expected) < TOLERANCE
        assert losses == [pytest.approx(loss, abs=1e-3)]


REFUSED = {
    says: made
    for says, made in models.REFUSED.items()
    if "linear" not in says  # their models, or the names of their layers, are not in every release
}


@pytest.mark.parametrize("says", REFUSED)
def test_models_that_cannot_isolate_are_refused(says: str) -> None:
    with pytest.raises(MismatchError, match=says):
        prepare_model(REFUSED[says]())


def test_the_release_asked_for_is_the_one_imported() -> None:
    assert transformers.__version__ == os.environ["PACKIDX_TRANSFORMERS"]
