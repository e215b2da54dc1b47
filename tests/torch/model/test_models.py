"""prepare_model and check_isolation on real models, also under flash-attn's arguments."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from plain_flash import PlainFlash, plain_flash, use_flash
from tiny_models import (
    FAMILIES,
    encoded_samples,
    fresh,
    packs_of,
    tiny,
)
from torch_packs import IMAGE

from packidx.errors import MismatchError, OptionError
from packidx.torch import collate
from packidx.torch.isolation import IsolationError, check_isolation
from packidx.torch.prepare import install_hook, number_segments, prepare_model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_samples_do_not_depend_on_what_stands_in_the_padding(
    tmp_path: Path, attention: str
) -> None:
    model = tiny("qwen2_5_vl", attention)
    packs = packs_of(tmp_path, "qwen2_5_vl", 45)
    with torch.no_grad():
        one = model(**collate(packs, pad_token_id=0)).logits
        other = model(**collate(packs, pad_token_id=77)).logits
    for row, pack in enumerate(packs):
        length = sum(segment.slot for segment in pack.segments)
        assert torch.equal(one[row, :length], other[row, :length])


# prepare_model


def test_the_cache_is_off_everywhere() -> None:
    model = fresh("qwen3_vl")
    assert model.config.text_config.use_cache
    assert prepare_model(model) is model
    assert model.config.use_cache is False and model.config.text_config.use_cache is False


def test_a_prepared_model_needs_no_use_cache_in_the_batch(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "qwen2_vl")

    def without(pack: Any) -> dict[str, Any]:
        return {key: value for key, value in collate(pack).items() if key != "use_cache"}

    model = fresh("qwen2_vl")
    with pytest.raises(IsolationError, match="a cache is on"):
        check_isolation(model, pack, collate=without)
    assert check_isolation(prepare_model(model), pack, collate=without) < 1e-5


def hooks(model: Any) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_are_installed_once_and_survive_copies(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "gemma3")
    model = prepare_model(prepare_model(fresh("gemma3")))
    assert hooks(model) == 4  # its masks, pixels that come as bytes, and padding before the router
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert check_isolation(prepare_model(other), pack) < 1e-5
        assert hooks(other) == 4
    assert hooks(prepare_model(fresh("qwen3"))) == 2


def test_wrapped_models(tmp_path: Path) -> None:
    class Wrapper(torch.nn.Module):  # as DistributedDataParallel
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, **inputs: Any) -> Any:
            return self.module(**inputs)

    (pack,) = packs_of(tmp_path, "gemma3")
    model = Wrapper(fresh("gemma3"))
    assert prepare_model(model) is model and not model.module.config.text_config.use_cache
    assert check_isolation(model, pack) < 1e-5


def test_gemma3_refuses_images_without_token_types(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "gemma3")
    for sample in pack.samples:
        del sample["token_type_ids"]
    with pytest.raises(MismatchError, match="no token_type_ids, so this model would read its"):
        prepare_model(fresh("gemma3"))(**collate(pack))


def with_config(family: str, **values: Any) -> Any:
    model = fresh(family)
    for name, value in values.items():
        setattr(model.config.get_text_config(), name, value)
    return model


def mamba() -> Any:
    config = transformers.MambaConfig(vocab_size=96, hidden_size=16, num_hidden_layers=1)
    return transformers.MambaForCausalLM(config)


REFUSED = {
    "has linear attention, .* missing here .flash-linear-attention": lambda: fresh("qwen3_5"),
    "uses attention implementation 'paged.sdpa'": lambda: with_config(
        "qwen3", _attn_implementation="paged|sdpa"
    ),
    "gemma3. lets tokens see one another": lambda: with_config(
        "gemma3", use_bidirectional_attention=True
    ),
    "qwen3. lets tokens see one another": lambda: with_config("qwen3", is_causal=False),
    "layers of type conv, which": lambda: with_config("qwen3", layer_types=["conv"] * 2),
    "cross-attention, through which": lambda: with_config("qwen3", cross_attention_layers=[1]),
    "MambaForCausalLM has layers of type linear_attention": mamba,
}


@pytest.mark.parametrize("says", REFUSED)
def test_models_that_cannot_isolate_are_refused(says: str) -> None:
    with pytest.raises(MismatchError, match=says) as caught:
        prepare_model(REFUSED[says]())
    assert "\n" not in str(caught.value)


def test_linear_attention_is_told_where_samples_begin(tmp_path: Path) -> None:
    """The kernels get their bounds: without them transformers' fallback says what it cannot do."""
    (pack,) = packs_of(tmp_path, "qwen3_vl")
    model = fresh("qwen3_5")
    install_hook(model.model.language_model, number_segments)
    with pytest.raises(ValueError, match="`causal_conv1d_fn` can't keep packed sequences apart"):
        model(**collate(pack, "flash"))
    with pytest.raises(MismatchError, match="use collate.packs, attention='flash'."):
        model(**collate(pack))


# check_isolation


def test_the_sample_that_differs_is_named(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "internvl")
    pixels = pack.joined()["pixel_values"]
    pixels[-1] += 1  # of the last sample that has images
    with_images = [
        int((one["input_ids"] == IMAGE).any()) for one in encoded_samples("internvl", pack)
    ]
    at = max(place for place, has in enumerate(with_images) if has)

    def one_wrong(pack: Any) -> dict[str, Any]:
        return {**collate(pack), "pixel_values": pixels}

    where = rf"pack 0, sample {int(pack.sample_ids[at])} at position {at}: .* from its token \d+ "
    with pytest.raises(IsolationError, match=where):
        check_isolation(tiny("internvl"), pack, collate=one_wrong)


def test_an_attention_that_the_model_does_not_know_is_found(tmp_path: Path) -> None:
    (pack,) = packs_of(tmp_path, "qwen3")
    with pytest.raises(OptionError, match="not one of flash"):
        check_isolation(tiny("qwen3"), pack, attention="varlen")
    with pytest.raises(IsolationError, match="2-D attention_mask"):
        check_isolation(tiny("qwen3"), pack, attention="indexed")


OF_FLASH = [family for family in FAMILIES if family != "gemma3"]


@pytest.fixture
def kernel() -> Iterator[PlainFlash]:
    with plain_flash() as plain:
        yield plain


@pytest.mark.parametrize("family", OF_FLASH)
def test_samples_stay_apart(tmp_path: Path, family: str, kernel: PlainFlash) -> None:
    (pack,) = packs_of(tmp_path, family)
    bounds = tuple(pack.joined()["cu_seqlens"].tolist())
    sdpa, flash = prepare_model(fresh(family)), prepare_model(use_flash(fresh(family)))
    check_isolation(flash, pack, attention="flash")
    assert bounds in kernel.causal
    assert bool(kernel.both_ways) == (family != "qwen3")
    assert bounds not in kernel.both_ways  # a tower's images lie elsewhere
    with torch.no_grad():
        want = sdpa(**collate(pack)).logits
        torch.testing.assert_close(flash(**collate(pack, "flash")).logits, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", OF_FLASH)
def test_bounds_of_other_samples_are_found(tmp_path: Path, family: str, kernel: PlainFlash) -> None:
    (pack,) = packs_of(tmp_path, family)
    flash = prepare_model(use_flash(fresh(family)))

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
