"""Logits, loss and gradients under flash-attn's arguments: packed = separate = sdpa.

Where a GPU and flash-attn are, its own kernel runs too; elsewhere plain PyTorch stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_flash import NAME, PlainFlash, plain_flash, use_flash
from tiny_models import FAMILIES, fresh, packs_of

from packidx.errors import MismatchError
from packidx.torch import check_isolation, collate, prepare_model

OF_FLASH = [family for family in FAMILIES if family != "gemma3"]
KERNELS = [
    "plain",
    pytest.param(
        NAME,
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(
                not torch.cuda.is_available() or find_spec("flash_attn") is None,
                reason='needs a CUDA device and flash-attn: pip install "packidx[flash]"',
            ),
        ],
    ),
]


@dataclass
class Kernel:
    """What attends, and how much its rounding makes."""

    plain: PlainFlash | None
    device: str
    dtype: torch.dtype
    tolerance: float
    """As a share of the largest number."""

    def models(self, family: str) -> tuple[Any, Any]:
        """The family's model under sdpa, and another of the same weights under flash-attn."""
        sdpa = prepare_model(fresh(family)).to(self.device, self.dtype)
        flash = fresh(family) if self.plain else fresh(family, NAME)
        flash = prepare_model(use_flash(flash) if self.plain else flash)
        flash.to(self.device, self.dtype).load_state_dict(sdpa.state_dict())
        return sdpa, flash

    def batch(self, pack: Any, attention: str) -> dict[str, Any]:
        return {
            key: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for key, value in collate(pack, attention).items()
        }

    def close(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        largest = max(1.0, float(other.abs().max()))
        return float((one.float() - other.float()).abs().max()) <= self.tolerance * largest


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    if request.param == NAME:
        yield Kernel(None, "cuda", torch.bfloat16, 0.05)
        return
    with plain_flash() as plain:
        yield Kernel(plain, "cpu", torch.float32, 1e-5)


@pytest.mark.parametrize("family", OF_FLASH)
def test_samples_stay_apart(tmp_path: Path, family: str, kernel: Kernel) -> None:
    (pack,) = packs_of(tmp_path, family)
    bounds = tuple(pack.joined()["cu_seqlens"].tolist())
    sdpa, flash = kernel.models(family)
    tolerance = kernel.tolerance if kernel.plain else None
    check_isolation(flash, pack, attention="flash", tolerance=tolerance)
    if kernel.plain:
        assert bounds in kernel.plain.causal
        assert bool(kernel.plain.both_ways) == (family != "qwen3")
        assert bounds not in kernel.plain.both_ways  # a tower's images lie elsewhere
    with torch.no_grad():
        want = sdpa(**kernel.batch(pack, "sdpa")).logits
        assert kernel.close(flash(**kernel.batch(pack, "flash")).logits, want)


@pytest.mark.parametrize("family", OF_FLASH)
def test_bounds_of_other_samples_are_found(tmp_path: Path, family: str, kernel: Kernel) -> None:
    (pack,) = packs_of(tmp_path, family)
    _, flash = kernel.models(family)

    def one_sample(pack: Any) -> dict[str, Any]:
        batch = collate(pack, "flash")
        length = batch["input_ids"].shape[1]
        bounds = torch.tensor([0, length], dtype=torch.int32)
        return {
            **batch,
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds),
            **dict.fromkeys(("max_length_q", "max_length_k"), length),
        }

    with pytest.raises(MismatchError, match=r"its logits in the pack differ"):
        check_isolation(flash, pack, attention="flash", collate=one_sample)


def test_gemma3_is_refused_under_flash() -> None:
    """Its images are seen in both directions, which no such kernel knows."""
    with pytest.raises(MismatchError, match="sees an image's tokens in both directions, which fl"):
        prepare_model(use_flash(fresh("gemma3")))


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_the_attention_is_set(attention: str) -> None:
    """Qwen2.5-VL refuses flex_attention when it is loaded."""
    model = prepare_model(fresh("qwen2_5_vl"), attention=attention)
    assert model.config.get_text_config()._attn_implementation == attention
