"""LLaMA-Factory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packidx.errors import SourceError
from packidx.io.unique_keys import load_json
from packidx.plan.options.trainers.llamafactory import LLAMAFACTORY as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import (
    OF_EVALUATION,
    OF_TEMPLATE,
    Peer,
    Take,
    lost,
    read_before,
    setting,
    take_processor,
)
from packidx.recipe.peers.places import hub_name
from packidx.records.sources.mixes import data_sets

_INFO = "dataset_info.json"
_MAX_PIXELS = 768 * 768  # by default
_SHRINKS = (
    "LLaMA-Factory shrinks images to it before the processor sees them, here the processor does, "
    "so an image may come to a few tokens more or fewer than there"
)
_FRAMES = "LLaMA-Factory picks a video's frames itself; the processor does here, by its settings"


def _datasets(draft: Draft, name: str, value: Any) -> None:
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        draft.lose(name, value, "it is no list of names")
        return
    folder = draft.at("dataset_dir") or "data"
    if folder == "ONLINE":
        for each in names:
            draft.add_place(hub_name(each))
        return
    path = os.path.join(str(folder), _INFO)
    try:
        with open(path, "rb") as file:
            info = load_json(file.read())
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        draft.lose("dataset_dir", folder, f"cannot read {path}: {said}")
        info = {}
    for each in names:
        entry = info.get(each) if isinstance(info, dict) else None
        if isinstance(entry, dict):
            add_entry(draft, path, each, entry, draft.at("media_dir") or str(folder))
        else:
            draft.add_todo(f"the data of {each}, which {path} does not tell of", each)


def add_entry(
    draft: Draft, path: str, name: str, entry: Mapping[str, Any], media: str | None = None
) -> None:
    """Add a data set of the meta file at `path`, whose media are looked for in `media`."""
    told = {key: value for key, value in entry.items() if value is not None}
    if told.get("hf_hub_url") and not told.get("file_name"):
        subset, split = told.pop("subset", None), told.pop("split", None)
        told["file_name"] = hub_name(told.pop("hf_hub_url"), subset, split)
    for key in ("num_samples", "folder", "ranking"):
        if told.get(key):
            draft.lose(f"{name}.{key}", told.pop(key), "all of the data set is taken")
    try:
        (data_set,) = data_sets(path, {name: told})
    except SourceError as error:
        draft.lost.append(str(error))
        draft.add_todo("see above", name)
        return
    if media is not None and data_set.layout.media_root is None:
        data_set = replace(data_set, layout=replace(data_set.layout, media_root=media))
    draft.add(data_set)


def _model(draft: Draft, name: str, value: Any) -> None:
    take_processor(draft, name, value)
    if draft.at("image_max_pixels") is None:
        draft.lost.append(
            f"image_max_pixels is not given: LLaMA-Factory shrinks images to {_MAX_PIXELS} pixels "
            f"then; images.max_pixels: {_MAX_PIXELS} in estimate.processor_settings does, where "
            "the processor has it"
        )


def _max_pixels(draft: Draft, name: str, value: Any) -> None:
    setting("images.max_pixels", _SHRINKS)(draft, name, value)


def _history(draft: Draft, name: str, value: Any) -> None:
    if value is True:
        draft.estimate["labels"] = "last"


_KEYS: dict[str, Take] = {
    "model_name_or_path": _model,
    "image_max_pixels": _max_pixels,
    "image_min_pixels": setting("images.min_pixels", _SHRINKS),
    "dataset_dir": read_before,
    "media_dir": read_before,
    "dataset": _datasets,
    "mask_history": _history,
    "train_on_prompt": lost("prompts are never trained here", False),
    "eval_dataset": lost(OF_EVALUATION),
    "template": lost(OF_TEMPLATE),
    "tool_format": lost(OF_TEMPLATE),
    "default_system": lost("add it to each record by estimate.transform"),
    "enable_thinking": lost("estimate.labels: no-thinking trains none"),
    "tokenized_path": lost("name the samples as they are before they are tokenized"),
    "video_max_pixels": lost(_FRAMES),
    "video_min_pixels": lost(_FRAMES),
    "video_fps": lost(_FRAMES),
    "video_maxlen": lost(_FRAMES),
    "crop_to_patches": lost("say it in estimate.processor_settings"),
    "image_do_pan_and_scan": lost("say it in estimate.processor_settings", False),
    "resize_vocab": lost("put new tokens into the processor's folder", False),
    "add_tokens": lost("put new tokens into the processor's folder"),
    "add_special_tokens": lost("put new tokens into the processor's folder"),
    "new_special_tokens": lost("put new tokens into the processor's folder"),
}

LLAMAFACTORY = Peer("llamafactory", "LLaMA-Factory", _KEYS, KEYS_OF_PACKS)
