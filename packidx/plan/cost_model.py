"""The cost model of a plan: what its packs cost, by phase.

Time of a pack = llm_linear·Σl + llm_attention·Σl² (+ windowed layers) in the language model, and
vit_linear·Σp + vit_attention·Σp² in the vision tower, l over the pack's samples, p over the patches
of its attention spans. The weights are operations (`packidx.plan.cost_model`), so a preset
compares phases as if both ran at the same efficiency; whoever has measured theirs sets the weights
to seconds. Only ratios matter to a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packidx.arrays import Float64s
from packidx.errors import OptionError
from packidx.index.cost import WEIGHTS, pack_cost

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
"""Name of a model -> its weights (`packidx.plan.cost_model.CostWeights`)."""


DEFAULT_PRESET = "qwen2.5-vl-7b"
_ADVICE = f"give a preset ({', '.join(PRESETS)}) or weights (llm_linear=…,vit_linear=…)"


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Weights of a pack's cost, in any one unit (of the presets: operations of a training step).

    Attributes:
        llm_linear: per token, in the language model's matrix products.
        llm_attention: per l², in its layers of full causal attention.
        llm_windowed: per l² up to the window, in its layers of sliding attention.
        llm_window: tokens a sliding layer looks back; counts only with `llm_windowed`.
        vit_linear: per patch, in the vision tower and its projector.
        vit_attention: per p² of an attention span.
    """

    llm_linear: float = 0.0
    llm_attention: float = 0.0
    llm_windowed: float = 0.0
    llm_window: float = 0.0
    vit_linear: float = 0.0
    vit_attention: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise OptionError(f"cost weight {name} is {value!r}: it must be a number")
            if not 0 <= value < math.inf:
                raise OptionError(
                    f"cost weight {name} is {value}: it must be finite and at least 0"
                )
            object.__setattr__(self, name, float(value))
        if self.llm_windowed and not self.llm_window:
            raise OptionError("llm_windowed counts tokens in a window: give llm_window, its tokens")
        if not (self.llm_linear or self.llm_attention or self.llm_windowed):
            raise OptionError("a pack costs nothing in the language model: give llm_linear")

    @classmethod
    def from_json(cls, weights: Mapping[str, Any]) -> CostWeights:
        """The inverse of `to_json`; a weight that is not there is 0."""
        unknown = sorted(set(weights) - set(WEIGHTS))
        if unknown:
            raise OptionError(f"cost has no weight {unknown[0]!r}: there are {', '.join(WEIGHTS)}")
        return cls(**weights)

    def to_json(self) -> dict[str, float]:
        """The weights as plain JSON, for the options of a manifest."""
        return asdict(self)

    def of(self, packs: Mapping[str, Any]) -> tuple[Float64s, Float64s]:
        """(LLM phase, ViT phase) of each pack; see `packidx.index.cost.pack_cost`."""
        return pack_cost(self.to_json(), packs)


def parse_cost(word: str) -> CostWeights:
    """The cost model that ``--cost`` names.

    A preset, or weights alone (those not named are 0), or a preset and after it weights that
    replace its own: ``qwen2.5-vl-7b,vit_linear=0``.

    Raises:
        OptionError: none of these.
    """
    base, *items = word.split(",")
    if "=" in base:
        base, items = "", [base, *items]
    pairs = [_pair(item) for item in items]
    weights = {name: _number(name, value) for name, value in pairs}
    if len(weights) < len(pairs):
        raise OptionError(f"cost {word!r} gives a weight twice: {_ADVICE}")
    if base and base not in PRESETS:
        raise OptionError(f"cost {word!r} is no preset: {_ADVICE}")
    return CostWeights.from_json(PRESETS.get(base, {}) | weights)


def _pair(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise OptionError(f"cost has {item!r}, which is no weight (NAME=NUMBER): {_ADVICE}")
    return name.strip(), value.strip()


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise OptionError(f"cost weight {name} is {value!r}: it must be a number") from None
