"""Cost weights of well-known models by name: operations of a training step.

They follow from a model's dimensions. Training a weight matrix costs 6 operations per weight and
token: 2 forward, 2 for the gradient of the activations, 2 for that of the weights (Kaplan et al.,
Scaling Laws for Neural Language Models, 2020, section 2.1). Attention has no weights. Of l tokens
in a sample, l²/2 pairs see each other; a pair costs 2 operations in QKᵀ and 2 in AV per head
dimension, three times that with the backward pass: 6·H·l² per layer of H = heads · head dimension,
and 12·D·p² per layer of a vision tower of width D, where no mask halves the pairs.
"""

from __future__ import annotations

_NAMES = (
    *("llm_linear", "llm_attention", "llm_windowed", "llm_window"),
    *("vit_linear", "vit_attention"),
)
_WEIGHTS = {
    "qwen2-vl-7b": (42_421_714_944, 602_112, 0, 0, 3_850_752_000, 491_520),
    "qwen2.5-vl-3b": (18_514_182_144, 442_368, 0, 0, 3_871_395_840, 61_440),
    "qwen2.5-vl-7b": (42_421_714_944, 602_112, 0, 0, 3_883_192_320, 61_440),
    "qwen2.5-vl-72b": (428_750_143_488, 3_932_160, 0, 0, 3_918_581_760, 61_440),
    "qwen3-vl-4b": (24_133_632_000, 884_736, 0, 0, 1_984_954_368, 294_912),
    "qwen3-vl-8b": (45_408_583_680, 884_736, 0, 0, 2_717_687_808, 373_248),
    "qwen3-vl-30b-a3b": (18_249_940_992, 1_179_648, 0, 0, 2_661_064_704, 373_248),
    "internvl3-8b": (42_413_328_384, 602_112, 0, 0, 1_856_839_680, 294_912),
    "llava-onevision-7b": (42_423_091_200, 602_112, 0, 0, 2_480_980_992, 359_424),
    "gemma3-4b": (23_279_370_240, 61_440, 356_352, 1_024, 2_471_592_960, 373_248),
    "text-8b": (45_027_950_592, 786_432, 0, 0, 0, 0),
}

PRESETS = {
    name: dict(zip(_NAMES, map(float, weights), strict=True)) for name, weights in _WEIGHTS.items()
}
"""Name of a model -> its weights (`packidx.plan.schedule.cost_model.CostModel`)."""
