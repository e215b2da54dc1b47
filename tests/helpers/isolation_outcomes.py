"""What prepare_model and check_isolation say of a tiny model of any image-text type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from built_samples import RECORDS, built, processor_of
from plain_flash import plain_flash, use_flash
from small_packs import make_index, record
from tiny_vlms import tiny_vlm

from packidx.encode.positions import model_positions
from packidx.errors import MismatchError
from packidx.torch import Pack, PackedDataset, check_isolation, prepare_model
from packidx.torch.isolation import IsolationError

HOLDS = (
    *("aria", "aya_vision", "cohere2_vision", "cohere_compass", "cosmos3_edge", "cosmos3_omni"),
    *("deepseek_vl", "deepseek_vl_hybrid", "ernie4_5_vl_moe", "exaone4_5", "gemma4", "glm46v"),
    *("glm4v", "glm4v_moe", "glm_ocr", "granite4_vision", "granite_docling"),
    *("hyperclovax_vision_v2", "idefics2", "idefics3", "janus", "kimi_k25", "lighton_ocr"),
    *("llava", "llava_next", "llava_next_video", "llava_onevision", "mistral3", "muse_glimmer"),
    *("ovis2", "paddleocr_vl", "qianfan_ocr", "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl"),
    *("qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe", "smolvlm", "step3p7"),
    *("video_llama_3", "video_llava", "vipllava"),
)
"""Samples of text, of one image and of two, in one pack, are as each is alone."""

REFUSED = {
    "dots3_note": "layers of type indexed_attention",
    "gemma4_unified": "in both directions",
    "glm5_next": "layers of type indexed_attention, linear_attention",
    "lfm2_vl": "layers of type conv",
    "lfm3_vl": "layers of type conv",
    "llama4": "attn_temperature_tuning",
    "minicpm_ocr": "linear attention",
    "minicpmv4_6": "linear attention",
    "minicpmv4_7": "linear attention",
    "minimax_m3_vl": "layers of type minimax_m3_sparse",
    "nemotron_h_omni": "layers of type linear_attention, moe",
    "molmo2": "in both directions",
    "paligemma": "in both directions",
    "qwen3_5": "linear attention",
    "qwen3_5_moe": "linear attention",
    "qwen4_exp": "layers of type indexed_attention, linear_attention",
}
"""Model type → words of the reason."""


@dataclass(frozen=True)
class Isolation:
    """What a model type gives."""

    model_type: str
    holds: bool
    reason: str = ""
    """Why it is refused, or why its samples are not as each is alone."""
    worst: float = 0.0
    """Largest difference between logits packed and alone."""


def isolation_of(model_type: str, tmp: Path, attention: str = "sdpa") -> Isolation:
    """The outcome for one model type, as `isolations_of` has it."""
    (isolation,) = isolations_of(model_type, tmp, (attention,))
    return isolation


def isolations_of(model_type: str, tmp: Path, attentions: Sequence[str]) -> list[Isolation]:
    """The outcomes for one model type, under sdpa, eager, flex, or flash by plain PyTorch.

    Args:
        tmp: where processors are kept from one call to the next.
    """
    processor, folder = processor_of(model_type, tmp)
    samples: list[dict[str, Any]] = []
    outcomes = []
    for attention in attentions:
        model = tiny_vlm(model_type, processor, "eager" if attention == "eager" else "sdpa")
        try:
            if attention == "flex":
                prepare_model(model, attention="flex_attention")
            else:
                prepare_model(use_flash(model) if attention == "flash" else model)
        except MismatchError as refused:
            outcomes.append(Isolation(model_type, False, str(refused)))
            continue
        samples = samples or samples_of(processor, folder, model.config)
        collated = "sdpa" if attention == "eager" else attention
        outcomes.append(compared(model_type, model, samples, collated))
    return outcomes


def compared(
    model_type: str, model: Any, samples: Sequence[dict[str, Any]], attention: str, **options: Any
) -> Isolation:
    """What `check_isolation` says of one pack of all samples."""
    pack = pack_of(samples)
    torch.compiler.set_stance("force_eager")  # of flex_attention: compiling takes half a minute
    try:
        with plain_flash():
            worst = check_isolation(model, pack, attention=attention, **options)
    except IsolationError as leak:
        return Isolation(model_type, False, str(leak))
    finally:
        torch.compiler.set_stance("default")
    return Isolation(model_type, True, worst=worst)


def isolation_outcomes(tmp: Path) -> Iterator[Isolation]:
    """Every model type that is measured, under sdpa."""
    for model_type in sorted((*HOLDS, *REFUSED)):
        yield isolation_of(model_type, tmp)


def samples_of(processor: Any, folder: Path, config: Any) -> list[dict[str, Any]]:
    """What an encoder would return: the processor's tensors and the model's positions."""
    samples = [_float32(built(processor, folder, each)) for each in RECORDS.values()]
    with TemporaryDirectory() as written:
        config.save_pretrained(written)
        positions = [model_positions(processor, written, sample) for sample in samples]
    return [
        sample if rows is None else {**sample, "position_ids": rows}
        for sample, rows in zip(samples, positions, strict=True)
    ]


def _float32(sample: dict[str, Any]) -> dict[str, Any]:
    """In the model's type: Llama 4's processor makes bfloat16."""
    low = torch.bfloat16
    return {
        name: value.float() if getattr(value, "dtype", None) is low else value
        for name, value in sample.items()
    }


def pack_of(samples: Sequence[dict[str, Any]]) -> Pack:
    """One pack of all samples, read by `PackedDataset`."""
    lengths = [len(sample["input_ids"]) for sample in samples]
    records = [{**record(n, [length]), "unknown": True} for n, length in enumerate(lengths)]
    with TemporaryDirectory() as folder:
        index = make_index(Path(folder), {"all": records}, capacity=sum(lengths))
        dataset = PackedDataset(index, lambda record: dict(samples[record["seed"]]))
        assert len(dataset) == 1
        pack = dataset[0]
    assert len(pack.samples) == len(samples)
    return pack
