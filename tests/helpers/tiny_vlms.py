"""A tiny random model of any image-text type of transformers, for its real processor.

The default configuration of the type is cut down by the names of its values; ids of tokens and
the size of patches are the processor's. What is not found so stands in `CHANGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

HEAD = 16
SMALL = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "out_hidden_size"), 4 * HEAD),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "depth", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim"), HEAD),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), HEAD // 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "projection_dim": 4 * HEAD,
    "max_position_embeddings": 16_384,
}
PATCHES = ("cohere_compass", "minicpmv4_7", "qwen3_omni_moe_thinker", "video_llama_3")
KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types")
ENDINGS = ("_token_id", "_token_index", "_id")
NO_MEDIA = ("pad", "bos", "eos", "sep", "decoder")


def _sections(config: Any) -> None:
    """mRoPE whose sections fit the small heads, in each kind of layer."""
    text = config.get_text_config()
    rope = dict(getattr(text, "rope_parameters", None) or {})
    share = getattr(text, "partial_rotary_factor", None) or rope.get("partial_rotary_factor", 1)
    eighth = int(HEAD * share) // 8
    rope |= {"rope_type": "default", "rope_theta": 10_000.0}
    rope["mrope_section"] = [eighth, eighth, 2 * eighth]
    kinds = text.layer_types if config.model_type == "cohere_compass" else ()
    text.rope_parameters = dict.fromkeys(kinds, rope) if kinds else rope


def _four_sections(config: Any) -> None:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [HEAD // 8] * 4}
    config.get_text_config().rope_parameters = rope


def _indexer(config: Any) -> None:
    _sections(config)
    text = config.get_text_config()
    text.indexer_n_heads, text.indexer_kv_heads, text.indexer_head_dim = 2, 1, HEAD
    text.indexer_budget, text.indexer_compress_ratio = 64, 4


def _convolution(config: Any) -> None:
    config.text_config.layer_types = ["conv", "full_attention"]  # as its checkpoints have them


def _large_images(config: Any) -> None:
    config.vision_config.image_size = 384  # as its processor makes them


def _own_projection(config: Any) -> None:
    config.projection_hidden_size = config.vision_config.hidden_size
    text = config.text_config  # of latent attention: as many heads of keys as of queries
    text.num_key_value_heads, text.head_dim = text.num_attention_heads, HEAD // 2


def _merged_patches(config: Any) -> None:
    config.spatial_merge_size = 1  # the processor's, whose tokens are not merged
    config.vision_config.patch_size = 16


def _short_chunks(config: Any) -> None:
    for each in _configs(config):
        each.dtype = torch.float32
    text, vision = config.text_config, config.vision_config
    text.moe_layers, text.intermediate_size_mlp = [0, 1], 48
    text.no_rope_layers = [1, 0]  # chunks where positions turn, all tokens where they do not
    text.attention_chunk_size, text.floor_scale = 100, 50
    vision.image_size, vision.intermediate_size = 336, 16 * HEAD
    vision.vision_output_dim = vision.projector_input_dim = vision.projector_output_dim = 4 * HEAD


def _shared_layers(config: Any) -> None:
    vocabulary = config.text_config.vocab_size
    config.text_config = type(config.text_config)(
        vocab_size=vocabulary,
        vocab_size_per_layer_input=vocabulary,
        hidden_size=4 * HEAD,
        hidden_size_per_layer_input=8,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD,
        global_head_dim=2 * HEAD,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )


def _tiles(size: int, patch: int) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        config.vision_config.image_size, config.vision_config.patch_size = size, patch

    return change


def _queries(config: Any) -> None:
    _tiles(980, 28)(config)
    config.projector_patch_to_query_dict = {35**2: 256}


def _sparse(config: Any) -> None:
    config.text_config.layer_types = ["full_attention", "minimax_m3_sparse"]  # as checkpoints
    config.text_config.mlp_layer_types = ["dense", "sparse"]
    config.merged_hidden_size, config.projector_hidden_size = 16 * HEAD, 4 * HEAD
    config.text_config.rotary_dim = HEAD


def _windows(config: Any) -> None:
    config.text_config.sliding_window = 16


def _both_images(config: Any) -> None:
    config.vision_config.image_size = 384
    config.high_res_vision_config.patch_size = 32
    config.high_res_vision_config.global_attn_indexes = [1]


def _last_layers(config: Any) -> None:
    config.vision_feature_layers = [-2, -1]


def _deep_layers(config: Any) -> None:
    _tiles(336, 14)(config)
    config.deepstack_layer_map, config.spatial_target_layers = [(-2, 0)], [0, 1, 0, 1]
    config.downsample_rate = "4/8"
    config.qformer_config.hidden_size = config.qformer_config.encoder_hidden_size = 4 * HEAD


def _merged_windows(config: Any) -> None:
    config.out_hidden_size = 16 * HEAD  # of four patches
    config.projector_hidden_size = 4 * HEAD


MROPE = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    *("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
    *("cohere_compass", "cosmos3_edge", "cosmos3_omni", "ernie4_5_vl_moe", "paddleocr_vl"),
)
CHANGES: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(MROPE, _sections),
    "hunyuan_vl": _four_sections,
    "qwen4_exp": _indexer,
    "lfm2_vl": _convolution,
    "deepseek_vl": _large_images,
    "kimi_k25": _own_projection,
    "mistral3": _merged_patches,
    "llama4": _short_chunks,
    "gemma4": _shared_layers,
    "aya_vision": _tiles(364, 14),
    "idefics3": _tiles(364, 14),
    "aria": _queries,
    "ovis2": _tiles(384, 24),
    "minimax_m3_vl": _sparse,
    "step3p7": _windows,
    "vipllava": _last_layers,
    "granite4_vision": _deep_layers,
    "deepseek_vl_hybrid": _both_images,
    "muse_glimmer": _merged_windows,
}
GIVEN: dict[str, dict[str, Any]] = {
    "gemma4": {"vision_config": {"position_embedding_size": 512}},
}
"""Model type → arguments of its configuration, where the default one sees no images."""
TOKENS: dict[str, dict[str, Any]] = {
    "llama4": {"image_token_id": "<|patch|>"},
    "ovis2": {
        "image_token_id": "<IMG_ATOM>",
        "visual_indicator_token_ids": ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"]
        + ["<IMG_END>"],
    },
}
"""Model type → tokens of its configuration that the processor has no attribute for."""


def tiny_vlm(model_type: str, processor: Any, attention: str = "sdpa") -> Any:
    """The model in evaluation mode, in whose outputs every weight shows."""
    config = tiny_config(model_type, processor)
    torch.manual_seed(0)
    made = _class_of(model_type)._from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15, generator=generator)
    return made


def tiny_config(model_type: str, processor: Any) -> Any:
    """The type's default configuration, small, with the processor's tokens and patches."""
    config = CONFIG_MAPPING[model_type](**GIVEN.get(model_type, {}))
    vocabulary = len(processor.tokenizer)
    if "omni" in model_type:  # their checkpoints state it, and their configurations have no default
        config.vision_start_token_id = -1
    for each in _configs(config):
        _shrink(each, vocabulary)
        _take_tokens(each, processor, vocabulary)
    if model_type in PATCHES:  # those of the processor made for it
        config.vision_config.patch_size = processor.image_processor.patch_size
    for name, tokens in TOKENS.get(model_type, {}).items():
        setattr(config, name, processor.tokenizer.convert_tokens_to_ids(tokens))
    if model_type in CHANGES:
        CHANGES[model_type](config)
    return config


def _class_of(model_type: str) -> Any:
    name = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type)
    return getattr(transformers, name or MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[model_type])


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for each in list(vars(config).values()):
        if hasattr(each, "to_dict") and hasattr(each, "model_type"):
            yield from _configs(each)


def _shrink(config: Any, vocabulary: int) -> None:
    for name, value in list(vars(config).items()):
        if name in SMALL and (isinstance(value, int) or name == "head_dim"):
            setattr(config, name, SMALL[name])
        elif name == "vocab_size":
            config.vocab_size = vocabulary
        elif name in KINDS_OF_LAYERS and isinstance(value, list | tuple):
            kinds = list(dict.fromkeys(value))
            setattr(config, name, (kinds * 2)[:2])
        elif name.endswith("_token_id") and name.startswith(NO_MEDIA) and value is not None:
            setattr(config, name, 0)


def _take_tokens(config: Any, processor: Any, vocabulary: int) -> None:
    for name, value in list(vars(config).items()):
        is_id = name.endswith(ENDINGS) and not name.startswith(NO_MEDIA)
        if is_id and (value is None or isinstance(value, int)):
            ident = _token_of(processor, name.replace("_index", "_id"))
            if ident is not None:
                setattr(config, name, ident)
            elif value is not None and value >= vocabulary:
                setattr(config, name, vocabulary - 1)
    media = ("image_processor", "video_processor")
    sizes = (getattr(getattr(processor, each, None), "merge_size", None) for each in media)
    size = next((each for each in sizes if each is not None), None)
    if size is not None and hasattr(config, "spatial_merge_size"):
        config.spatial_merge_size = size


def _token_of(processor: Any, name: str) -> int | None:
    """The id that a processor has for what a configuration calls ``image_token_id``."""
    stem = name.removesuffix("_id").removesuffix("_token")
    ends = stem.replace("_start", "_bos").replace("_end", "_eos")  # as Qwen-Omni's has them
    tokenizer = processor.tokenizer
    written = [{"newline": "\n"}.get(stem, f"<|{stem}|>")]
    for each in (stem, ends):
        for owner in (processor, tokenizer):
            ident = getattr(owner, f"{each}_token_id", None)
            if isinstance(ident, int):
                return ident
            token = getattr(owner, f"{each}_token", None)
            written[-1:-1] = [token] if isinstance(token, str) else []
    ids = [tokenizer.encode(token, add_special_tokens=False) for token in written]
    return next((each[0] for each in ids if len(each) == 1), None)
