"""Which processor class serves which image-text models, as transformers' mappings have it."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

BESIDES_MAPPING = {
    "kosmos-2": "Kosmos2Processor",
    "kosmos-2.5": "Kosmos2_5Processor",
    "qwen2_5_omni_thinker": "Qwen2_5OmniProcessor",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeProcessor",
}
"""Model types that the mapping of processors has under another name, or not at all."""


HEARING = {
    "audioflamingo3": "AudioFlamingo3Processor",
    "glmasr": "GlmAsrProcessor",
    "moss_transcribe_diarize": "MossTranscribeDiarizeProcessor",
    "nemo_speechlm": "Nemotron3_5TranscribeProcessor",
    "phi4_multimodal": "Phi4MultimodalProcessor",
    "qwen2_audio": "Qwen2AudioProcessor",
    "qwen3_asr": "Qwen3ASRProcessor",
    "vibevoice_asr": "VibeVoiceAsrProcessor",
    "voxtral": "VoxtralProcessor",
}
"""Model types that take sound and text, and are not in the mapping of image-text models."""


def processor_classes() -> dict[str, list[str]]:
    """Name of the processor class → its model types, both sorted.

    Model types whose checkpoints name their processor themselves are left out (`unmapped`).
    """
    classes: dict[str, list[str]] = {}
    for model_type in sorted({*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *HEARING}):
        name = _class_of(model_type)
        if name is not None:
            classes.setdefault(name, []).append(model_type)
    return dict(sorted(classes.items(), key=lambda item: item[0].lower()))


def unmapped() -> list[str]:
    """Model types of which transformers does not say which processor they take."""
    return [
        model_type
        for model_type in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        if _class_of(model_type) is None
    ]


def _class_of(model_type: str) -> str | None:
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    return name if name is not None else {**BESIDES_MAPPING, **HEARING}.get(model_type)
