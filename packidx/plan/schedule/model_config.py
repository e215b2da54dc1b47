"""A model's cost weights from its transformers ``config.json``: operations per token and per patch.

Training a weight matrix costs 6 operations per weight and token: 2 forward, 2 for the gradient of
the activations, 2 for that of the weights (Kaplan et al., Scaling Laws for Neural Language Models,
2020, section 2.1). Attention has no weights. Of l tokens in a sample, l²/2 pairs see each other; a
pair costs 2 operations in QKᵀ and 2 in AV per head dimension, three times that with the backward
pass: 6·H·l² per layer of H = heads · head dimension, and 12·D·p² per layer of a vision tower, where
no mask halves the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import OptionError

FROZEN = ("vision", "language", "projector")
Config = Mapping[str, Any]

# What transformers' classes assume and older config.json files leave out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "qwen2": {"vocab_size": 151936},
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "siglip_vision_model": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "patch_size": 16,
        "image_size": 224,
    },
    "qwen2_vl": {"mlp_ratio": 4, "temporal_patch_size": 2, "spatial_merge_size": 2},
    "qwen2_5_vl": {"temporal_patch_size": 2, "spatial_merge_size": 2},
}
_GATED_TOWERS = ("qwen2_5_vl", "glm4v", "glm4v_moe", "pixtral")


class Section:
    """One part of a config.json, its defaults filled in, its missing keys an error."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.model_type = str(config.get("model_type", "")).removesuffix("_vision")
        self._values = {**_DEFAULTS.get(self.model_type, {}), **config}

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that is there and not null."""
        values = (self._values.get(name) for name in names)
        return next((value for value in values if value is not None), default)

    def number(self, *names: str, default: int | None = None) -> int:
        """The same as a whole number.

        Raises:
            OptionError: it is none, or below 1 without a default.
        """
        value = self.get(*names, default=default)
        value = value[0] if isinstance(value, list | tuple) and value else value
        is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
        if not is_whole or value < (default is None):
            raise OptionError(
                f"the model's {self.name} has {names[0]} {value!r}: give a config.json with every "
                "value (transformers leaves defaults out), a preset, or the weights themselves"
            )
        return int(value)


def weights_of(config: Config, frozen: tuple[str, ...] = ()) -> dict[str, float]:
    """Operations of one training step, by weight of `packidx.index.cost`.

    Args:
        config: what a config.json holds: a language model's, or with ``text_config`` and
            ``vision_config``.
        frozen: parts that are not trained (`FROZEN`): their weights have no gradients, and nothing
            before the first trained part has any.

    Raises:
        OptionError: an unknown part or layer type, a missing value, or nothing left to train.
    """
    unknown = sorted(set(frozen) - set(FROZEN))
    if unknown:
        raise OptionError(f"frozen names {unknown[0]!r}: there are {', '.join(FROZEN)}")
    while isinstance(config.get("thinker_config"), Mapping):
        config = config["thinker_config"]
    text = next((config[k] for k in ("text_config", "llm_config") if config.get(k)), config)
    vision = config.get("vision_config")
    if not isinstance(text, Mapping) or not isinstance(vision or {}, Mapping):
        raise OptionError("text_config and vision_config must be JSON objects: check config.json")
    if set(FROZEN) == set(frozen) or ("language" in frozen and not vision):
        raise OptionError("every part of the model is frozen: there is nothing to train")
    language = Section("text_config", text)
    trains_vision = bool(vision) and "vision" not in frozen
    behind = trains_vision or (bool(vision) and "projector" not in frozen)
    linear, full, windowed = _language(language)
    weights = {
        "llm_linear": 2.0 * _passes("language" not in frozen, behind) * linear,
        "llm_attention": 6.0 * full,
        "llm_windowed": 6.0 * windowed,
        "llm_window": float(language.number("sliding_window")) if windowed else 0.0,
        "vit_linear": 0.0,
        "vit_attention": 0.0,
    }
    if vision:
        tower = Section("vision_config", {"model_type": config.get("model_type", ""), **vision})
        matrices, near, far = _tower(tower)
        projector = _projector(Section("config", config), tower, language.number("hidden_size"))
        passes = 3 if trains_vision else 1
        weights["vit_linear"] = (
            2.0 * passes * matrices
            + 4.0 * passes * near
            + 2.0 * _passes("projector" not in frozen, trains_vision) * projector
        )
        weights["vit_attention"] = 4.0 * passes * far
    return weights


def _passes(trained: bool, behind: bool) -> int:
    """Passes of 2 operations per weight: forward, then gradients of activations and of weights.

    What is not trained has none of its weights, and of its activations only for a part `behind` it.
    """
    return 3 if trained else 1 + behind


def _language(config: Section) -> tuple[float, float, float]:
    """(weights a token meets, H summed over full layers, over windowed layers)."""
    hidden = config.number("hidden_size")
    types = _layer_types(config)
    linear = float(hidden * config.number("vocab_size"))
    linear += sum(_mlp(config, layer) for layer in range(len(types)))
    attention, width = _attention(config)
    counted = {kind: types.count(kind) for kind in set(types)}
    full, windowed = counted.pop("full_attention", 0), counted.pop("sliding_attention", 0)
    recurrent = counted.pop("linear_attention", 0)
    if counted:
        raise OptionError(
            f"the model has {sorted(counted)[0]!r} layers, and full_attention, sliding_attention "
            "and linear_attention are known: give the weights themselves (llm_linear=…,…)"
        )
    linear += (full + windowed) * attention
    linear += recurrent * _recurrent(config) if recurrent else 0
    return linear, full * width, windowed * width


def _layer_types(config: Section) -> list[str]:
    """The kind of attention of every layer."""
    layers = config.number("num_hidden_layers")
    given = config.get("layer_types")
    if given is not None:
        return [str(kind) for kind in given][:layers]
    every, other = config.get("full_attention_interval"), "linear_attention"
    if every is None and config.get("sliding_window") is not None:
        other = "sliding_attention"
        every = config.get("sliding_window_pattern", "_sliding_window_pattern")
        is_used = config.get("use_sliding_window", default=config.model_type == "mistral")
        if every is None and is_used:
            first = config.number("max_window_layers", default=0)
            return ["full_attention" if layer < first else other for layer in range(layers)]
    every = 1 if every is None else int(every)
    return ["full_attention" if (layer + 1) % every == 0 else other for layer in range(layers)]


def _attention(config: Section) -> tuple[int, float]:
    """(weights of an attention layer's projections, its H = heads · head dimension)."""
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    if config.get("kv_lora_rank"):
        return _latent(config, hidden, heads)
    size = config.number("head_dim", default=hidden // heads)
    keys = config.number("num_key_value_heads", default=heads) * size
    is_gated = config.model_type.startswith(("qwen3_5", "qwen3_next"))
    queries = heads * size * (2 if config.get("attn_output_gate", default=is_gated) else 1)
    return hidden * (queries + 2 * keys + heads * size), float(heads * size)


def _latent(config: Section, hidden: int, heads: int) -> tuple[int, float]:
    """The same of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    key, value = config.number("qk_nope_head_dim"), config.number("v_head_dim")
    low = config.number("q_lora_rank", default=0)
    queries = heads * (key + rope)
    linear = (hidden * low + low * queries) if low else hidden * queries
    linear += hidden * (rank + rope) + rank * heads * (key + value) + heads * value * hidden
    return linear, heads * (key + rope + value) / 2


def _recurrent(config: Section) -> int:
    """Weights of a gated delta-rule layer, and what its state costs as if it were weights.

    For each token a head reads its state of key x value numbers with the key, updates it, and reads
    it with the query (Yang et al., Gated Delta Networks, arXiv 2412.06464, equation 10).
    """
    hidden = config.number("hidden_size")
    heads, key = config.number("linear_num_value_heads"), config.number("linear_key_head_dim")
    size = config.number("linear_value_head_dim")
    keys, values = config.number("linear_num_key_heads") * key, heads * size
    projections = hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    convolution = config.number("linear_conv_kernel_dim", default=4) * (2 * keys + values)
    return projections + convolution + 3 * heads * key * size


def _mlp(config: Section, layer: int) -> int:
    """Weights a token meets in one layer's gated MLP, or in its router and active experts."""
    hidden = config.number("hidden_size")
    experts = config.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    step = config.number("decoder_sparse_step", "moe_layer_freq", default=1)
    dense = (
        not experts
        or layer in (config.get("mlp_only_layers") or ())
        or layer < config.number("first_k_dense_replace", default=0)
        or (layer + (config.get("moe_layer_freq") is None)) % max(1, step) != 0
    )
    if dense:
        return 3 * hidden * config.number("intermediate_size")
    width = config.number("moe_intermediate_size", "intermediate_size")
    several = config.number("n_shared_experts", default=0) * width
    shared = config.number("shared_expert_intermediate_size", default=several)
    active = config.number("num_experts_per_tok") * width + shared
    gate = hidden if config.get("shared_expert_intermediate_size") else 0
    return 3 * hidden * active + hidden * experts + gate


def _tower(config: Section) -> tuple[float, float, float]:
    """(weights a patch meets, D·window summed over windowed layers, D over full layers).

    A window (Qwen2.5-VL) has the same number of patches everywhere but at an image's rim, so its
    attention costs the same for every patch: it is part of the linear weight.
    """
    depth = config.number("depth", "num_hidden_layers")
    width = config.number("embed_dim", "hidden_size")
    ratio = config.get("mlp_ratio")
    inner = config.number("intermediate_size") if ratio is None else int(width * ratio)
    gated = config.model_type in _GATED_TOWERS
    if config.model_type.startswith("glm4v"):
        inner = config.number("out_hidden_size")
    patch = config.number("patch_size")
    layer = 4 * width * width + (3 if gated else 2) * width * inner
    pixels = config.number("in_channels", "in_chans", "num_channels", default=3) * patch * patch
    pixels *= config.number("temporal_patch_size", default=1)
    full = config.get("fullatt_block_indexes")
    far = depth if full is None else len(full)
    side = config.number("window_size") // patch if far < depth else 0
    matrices = float(depth * layer + pixels * width)
    return matrices, float((depth - far) * width * side * side), float(far * width)


def _projector(config: Section, tower: Section, hidden: int) -> float:
    """Weights of the layers between tower and language model, per patch."""
    width = tower.number("embed_dim", "hidden_size")
    merge = tower.number("spatial_merge_size", default=0) or config.number(
        "spatial_merge_size", default=0
    )
    if merge:
        merged = merge * merge * width
        copies = 1 + len(tower.get("deepstack_visual_indexes", default=()))
        return copies * (merged * merged + merged * hidden) / (merge * merge)
    tokens = config.get("mm_tokens_per_image")
    if tokens:
        grid = (tower.number("image_size") // tower.number("patch_size")) ** 2
        return width * hidden * int(tokens) / grid
    ratio = float(config.get("downsample_ratio", default=1.0))
    scale = config.number("scale_factor", default=0)
    if scale:
        return float(width * hidden)
    return width * hidden + hidden * hidden * ratio * ratio
