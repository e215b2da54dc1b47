"""On a CUDA device: samples of a pack stay apart, also under the kernels of flash-attn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, fresh, packs_of

from packidx.torch import check_isolation, prepare_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_flash = pytest.mark.skipif(
    find_spec("flash_attn") is None, reason='needs flash-attn: pip install "packidx[flash]"'
)
needs_kernels = pytest.mark.skipif(
    find_spec("fla") is None or find_spec("causal_conv1d") is None,
    reason="needs flash-linear-attention and causal-conv1d",
)
DEVICE = "cuda"


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_stay_apart(tmp_path: Path, family: str) -> None:
    model = prepare_model(fresh(family)).to(DEVICE)
    (pack,) = packs_of(tmp_path, family)
    assert check_isolation(model, pack) < 1e-4


@needs_flash
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3"])
def test_samples_stay_apart_under_flash_attn(tmp_path: Path, family: str) -> None:
    model = prepare_model(fresh(family, "flash_attention_2")).to(DEVICE, torch.bfloat16)
    (pack,) = packs_of(tmp_path, family)
    check_isolation(model, pack, attention="flash")


@needs_flash
@needs_kernels
def test_linear_attention_stays_apart_with_its_kernels(tmp_path: Path) -> None:
    model = prepare_model(fresh("qwen3_5", "flash_attention_2")).to(DEVICE, torch.bfloat16)
    (pack,) = packs_of(tmp_path, "qwen3_vl")
    check_isolation(model, pack, attention="flash")
