"""What some classes need besides what their source says, and why others cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import family_processors as families
import family_processors_tiles as tiles
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from processors import FEW_RANKS, qwen_folders


@dataclass(frozen=True)
class Needs:
    """What is not found in the class itself."""

    placeholder: str | None = None
    """What stands for an image in the text; None for the processor's ``image_token``."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Kind of medium → the same, where it is more than the processor's token."""
    tokens: tuple[str, ...] = ()
    """Special tokens besides those in its source."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Attribute of the tokenizer → special token."""
    own: Mapping[str, str] = field(default_factory=dict)
    """``bos_token`` and ``eos_token``, which Qwen's tokenizer does not have or has otherwise."""
    begins: str = ""
    """What the chat template writes first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the processor."""
    parts: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    """Attribute of the processor → name of its class, or the arguments of the mapped one."""
    like: tuple[str, ...] = ()
    """Model types whose parts are taken."""


def _qwen(name: str) -> Callable[[Path], Any]:
    def make(tmp: Path) -> Any:
        folder = qwen_folders(tmp / "qwen", FEW_RANKS)[name]
        return transformers.AutoProcessor.from_pretrained(folder)

    return make


def _family(name: str) -> Callable[[Path], Any]:
    return lambda tmp: families.family_processor(name, tmp / "families")[0]


FAMILIES: dict[str, Callable[[Path], Any]] = {
    "Qwen2VLProcessor": _qwen("qwen2-vl"),
    "Qwen2_5_VLProcessor": _qwen("qwen2.5-vl"),
    "Qwen3VLProcessor": _qwen("qwen3-vl"),
    "InternVLProcessor": _family("internvl"),
    "Glm4vProcessor": _family("glm4v"),
    "Glm46VProcessor": _family("glm46v"),
    "Kimi_K25Processor": _family("kimi_k25"),
    "LlavaProcessor": tiles.llava,
    "LlavaNextProcessor": tiles.llava_next,
    "LlavaOnevisionProcessor": tiles.llava_onevision,
    "Gemma3Processor": tiles.gemma3,
    "PixtralProcessor": tiles.pixtral,
    "Idefics3Processor": tiles.idefics3,
    "SmolVLMProcessor": tiles.smolvlm,
}
"""Classes of packidx's families, with the settings and the chat template of a checkpoint."""

_AUDIO = {"audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
_COMPASS = {"image_token": "<|IMAGE_PAD|>", "video_token": "<|VIDEO_PAD|>"}
_COMPASS |= {"vision_start_token": "<|VISION_START|>", "vision_end_token": "<|VISION_END|>"}
_LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default"}
_LLAVA |= {"num_additional_image_tokens": 1}
_OMNI = {  # without the markers its positions have one dimension
    "image": "<vision_bos><image><vision_eos>",
    "video": "<vision_bos><video><vision_eos>",
    "audio": "<audio_bos><audio><audio_eos>",
}


def _square(side: int) -> dict[str, int]:
    """The size of a checkpoint's tiles; that of its class does not fit its model's patches."""
    return {"height": side, "width": side}


_TILES_OF_336 = {"image_processor": {"size": {"shortest_edge": 336}, "crop_size": _square(336)}}

NEEDS: dict[str, Needs] = {
    "AyaVisionProcessor": Needs(parts={"image_processor": {"size": _square(364)}}),
    "Blip2Processor": Needs(placeholder="", settings={"num_query_tokens": 32}),
    "BlipProcessor": Needs(placeholder=""),
    "CohereCompassProcessor": Needs(named=_COMPASS),
    "Emu3Processor": Needs(tokens=("<bos>",), own={"bos_token": "<bos>"}),
    "Ernie4_5_VLMoeProcessor": Needs(parts={"video_processor": {"draw_on_frames": False}}),
    "Florence2Processor": Needs(
        placeholder="",
        tokens=("<s>", "</s>"),
        own={"bos_token": "<s>", "eos_token": "</s>"},
        parts={"image_processor": {"image_seq_length": 577}},
    ),
    "Gemma4Processor": Needs(named=_AUDIO),
    "Gemma4UnifiedProcessor": Needs(named=_AUDIO),
    "GitProcessor": Needs(placeholder=""),
    "Granite4VisionProcessor": Needs(
        settings={**_LLAVA, "downsample_rate": "4/8"}, parts=_TILES_OF_336
    ),
    "HunYuanVLProcessor": Needs(placeholder="<image_start><image><image_end>"),
    "IdeficsProcessor": Needs(placeholder="<image>", tokens=("<s>",), own={"bos_token": "<s>"}),
    "InstructBlipProcessor": Needs(placeholder="", settings={"num_query_tokens": 32}),
    "Kosmos2Processor": Needs(
        placeholder="",
        tokens=("<s>", "</s>", "<unk>"),
        own={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "LlavaNextVideoProcessor": Needs(settings=_LLAVA, parts=_TILES_OF_336),
    "MllamaProcessor": Needs(
        tokens=("<|begin_of_text|>",),
        own={"bos_token": "<|begin_of_text|>"},
        begins="{{ bos_token }}",
    ),
    "NemotronH_Omni_Reasoning_V3Processor": Needs(
        parts={"feature_extractor": "ParakeetFeatureExtractor"},
        tokens=("<so_start>", "<so_end>", "<so_embedding>"),
    ),
    "Ovis2Processor": Needs(tokens=("<IMG_START>", "<IMG_GRID>")),
    "PPChart2TableProcessor": Needs(placeholder="<img>" + "<imgpad>" * 256 + "</img>"),
    "PI0Processor": Needs(placeholder="", tokens=("<bos>",), own={"bos_token": "<bos>"}),
    "PaliGemmaProcessor": Needs(
        placeholder="",
        tokens=("<bos>",),
        own={"bos_token": "<bos>"},
        parts={"image_processor": {"image_seq_length": 256}},
    ),
    "PerceptionLMProcessor": Needs(settings={"patch_size": 14}),
    "QianfanOCRProcessor": Needs(
        placeholder="<image>", parts={"image_processor": {"size": _square(448), "max_patches": 4}}
    ),
    "Qwen2_5OmniProcessor": Needs(written=_OMNI, like=("qwen2_5_omni",)),
    "Qwen3OmniMoeProcessor": Needs(written=_OMNI, like=("qwen3_omni_moe",)),
}

NOT_BUILT: dict[str, str] = {
    "EvollaProcessor": "takes proteins, and no images",
    "FuyuProcessor": "needs a SentencePiece tokenizer, which puts a token before its special ones",
    "InstructBlipVideoProcessor": "takes videos, and no images",
    "PPFormulaNetProcessor": "takes images alone, and no text",
    "Pix2StructProcessor": "gives patches of the image and no tokens that a model reads",
    "UdopProcessor": "takes the words of a page with their boxes, as OCR reads them",
}
"""Class → why it is left out, in words that follow its name."""
