"""LoongForge's offline packing."""

from __future__ import annotations

from typing import Any

from packidx.plan.options.trainers.loongforge import LOONGFORGE as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.lmms import add_all
from packidx.recipe.peers.peer import Peer, Take, lost, read_before, setting, take_processor

_ARGUMENTS = "model.processor_kwargs"
_BOTH = "the processor of LoongForge has it for videos, too: add videos.* where you have them"
_FUNCTION = "a function of LoongForge's, before the processor: write it as estimate.transform"


def _tars(draft: Draft, name: str, value: Any) -> None:
    add_all(draft, name, draft.path, {"data": draft.file["data"]})


def _media(draft: Draft, name: str, value: Any) -> None:
    for kind, function in (value if isinstance(value, dict) else {"": value}).items():
        if function is not None:
            draft.lose(f"{name}.{kind}", function, _FUNCTION)


_KEYS: dict[str, Take] = {
    f"{_ARGUMENTS}.pretrained_model_name_or_path": take_processor,
    f"{_ARGUMENTS}.max_pixels": setting("images.max_pixels", _BOTH),
    f"{_ARGUMENTS}.min_pixels": setting("images.min_pixels", _BOTH),
    "data.template_text_key": read_before,
    "data.wds_dir": _tars,
    "media_preprocess": _media,
    "data.input_format": lost("packidx tells tars from files by their names", "wds"),
}

LOONGFORGE = Peer("loongforge", "LoongForge", _KEYS, KEYS_OF_PACKS)
