"""Logits under flex_attention: a BlockMask from collate, or one per type of layer.

On a CPU (torch 2.13) flex_attention has no backward, and compiling it takes half a minute a shape:
most tests run it as plain PyTorch.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import FAMILIES, fresh, packs_of, tiny, worst_difference
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packidx.torch import collate
from packidx.torch.isolation import IsolationError, check_isolation
from packidx.torch.prepare import Between, block_mask, causal_within, prepare_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),  # torch's own
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),  # transformers' own
]


@pytest.fixture
def uncompiled() -> Iterator[None]:
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def model_of(family: str) -> Any:
    return prepare_model(tiny(family, "flex_attention"))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(tmp_path: Path, family: str) -> None:
    """Against samples alone under sdpa; several rows, one of them shorter."""
    packs = packs_of(tmp_path, family, 30 if family == "qwen3" else 45)
    batch = collate(packs, "flex")
    assert isinstance(batch["attention_mask"], BlockMask)
    with torch.no_grad():
        logits = model_of(family)(**batch).logits
    separate = prepare_model(tiny(family))
    assert len(logits) > 1 and worst_difference(separate, family, packs, logits) < 1e-5


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_over_all_shows_and_is_found(tmp_path: Path, family: str) -> None:
    (pack,) = packs_of(tmp_path, family)
    model = model_of(family)
    assert check_isolation(model, pack, attention="flex") < 1e-5

    def one_segment(pack: Any) -> dict[str, Any]:
        batch = collate(pack, "flex")
        mask: Any = block_mask(causal_within(torch.zeros_like(batch["input_ids"])))
        if family == "gemma3":  # its hook makes masks from positions and token types
            mask = {"full_attention": mask, "sliding_attention": mask}
        return {**batch, "attention_mask": mask}

    with torch.no_grad():
        logits = model(**one_segment(pack)).logits
    assert worst_difference(prepare_model(tiny(family)), family, [pack], logits) > 1e-2
    with pytest.raises(IsolationError):
        check_isolation(model, pack, collate=one_segment)


@pytest.mark.usefixtures("uncompiled")
def test_sliding_windows_survive_the_block_mask(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "qwen3")
    model = fresh("qwen3", "flex_attention", sliding_window=4)
    with pytest.raises(IsolationError, match="was not given to prepare_model"):
        check_isolation(model, pack, attention="flex")
    assert check_isolation(prepare_model(model), pack, attention="flex") < 1e-5


def test_compiled(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "qwen3")
    with torch.no_grad():
        logits = model_of("qwen3")(**collate(pack, "flex")).logits
    assert worst_difference(tiny("qwen3"), "qwen3", [pack], logits) < 1e-5


lengths = st.lists(st.integers(1, 300), min_size=1, max_size=6)


@given(lengths, st.integers(1, 400), st.integers(0, 200))
@example([127, 300], 400, 0)
@example([128, 300], 128, 127)
@example([129, 300], 129, 128)
@example([300], 400, 126)
def test_tiles_are_those_that_torch_finds(lengths: list[int], window: int, reach: int) -> None:
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    causal = causal_within(numbers)
    place = torch.arange(sum(lengths))
    bounded = Between(
        causal.first.maximum(place - window + 1), (place + reach).clamp(max=len(place) - 1)[None]
    )
    for rule in (causal, bounded):
        mine: Any = block_mask(rule)
        theirs: Any = create_block_mask(rule, 1, None, len(place), len(place), device="cpu")
        assert torch.equal(mine.to_dense(), theirs.to_dense())
        assert torch.equal(mine.kv_num_blocks, theirs.kv_num_blocks)
        assert torch.equal(mine.full_kv_num_blocks, theirs.full_kv_num_blocks)


def test_a_worker_can_send_it_and_a_device_take_it() -> None:
    mask = block_mask(causal_within(torch.tensor([[1, 1, 2]])))
    sent = pickle.loads(pickle.dumps(mask))
    for one in (sent, mask.to("meta", non_blocking=True)):
        assert isinstance(one, BlockMask) and one.shape == (1, 1, 3, 3)
    moved = mask.to("meta")
    assert moved.kv_indices.is_meta and moved.mask_mod.first.is_meta
    assert not mask.mask_mod.first.is_meta
