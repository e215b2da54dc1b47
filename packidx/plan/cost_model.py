"""The cost model of a plan: what its packs cost, by phase.

Time of a pack = llm_linear·Σl + llm_attention·Σl² (+ windowed layers) in the language model, and
vit_linear·Σp + vit_attention·Σp² in the vision tower, l over the pack's samples, p over the patches
of its attention spans. The weights are operations (`packidx.plan.cost_model`), so a preset
compares phases as if both ran at the same efficiency; weights that were measured may be seconds.
Only ratios matter to a schedule.
"""

from __future__ import annotations

import math

from packidx.errors import OptionError
from packidx.format.index import CostModel

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
"""Name of a model -> its weights (`CostModel`)."""

DEFAULT_PRESET = "qwen2.5-vl-7b"
_ADVICE = f"give a preset ({', '.join(PRESETS)}) or weights (llm_linear=…,vit_linear=…)"


def parse_cost(word: str) -> CostModel:
    """Return the cost model that ``--cost`` names.

    The word is a preset, or weights alone (those not named are 0), or a preset followed by weights
    that replace its own: ``qwen2.5-vl-7b,vit_linear=0``.

    Raises:
        OptionError: the word is none of these.
    """
    base, *items = word.split(",")
    if "=" in base:
        base, items = "", [base, *items]
    weights = {}
    for item in items:
        name, equals, value = map(str.strip, item.partition("="))
        if not equals:
            raise OptionError(f"cost has {item!r}, which is not a weight (NAME=NUMBER): {_ADVICE}")
        try:
            weights[name] = float(value)
        except ValueError:
            raise OptionError(f"cost weight {name} is {value!r}: it must be a number") from None
        if not 0 <= weights[name] < math.inf:
            raise OptionError(f"cost weight {name} is {value}: it must be finite and at least 0")
    if len(weights) < len(items):
        raise OptionError(f"cost {word!r} gives a weight twice: {_ADVICE}")
    if base and base not in PRESETS:
        raise OptionError(f"cost {word!r} is not a preset: {_ADVICE}")
    if unknown := sorted(weights.keys() - set(_NAMES)):
        raise OptionError(f"cost has no weight {unknown[0]!r}: there are {', '.join(_NAMES)}")
    model = CostModel(**(dict.fromkeys(_NAMES, 0.0) | PRESETS.get(base, {}) | weights))
    if model.llm_windowed and not model.llm_window:
        raise OptionError("llm_windowed counts tokens in a window: give llm_window, its tokens")
    if not (model.llm_linear or model.llm_attention or model.llm_windowed):
        raise OptionError("a pack costs nothing in the language model: give llm_linear")
    return model
