"""LMMS Engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import SourceError
from packidx.io import storage
from packidx.plan.options.trainers.lmms import LMMS as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import Peer, Take, lost, read_before, setting, take_processor
from packidx.records.containers.registry import SUFFIXES
from packidx.records.sources.mixes import data_sets, load_mix
from packidx.records.sources.trainer_files import listed

_CONFIG = "dataset_config"
_FRAMES = "LMMS Engine picks a video's frames itself; the processor does here, by its settings"
_LISTS = (".yaml", ".yml", ".json")


def _listed(draft: Draft, name: str, value: Any) -> None:
    if listed({"datasets": value}) is not None:
        add_all(draft, name, draft.path, {"datasets": value})
    elif value:
        draft.lose(name, value, "it is no list of data sets with a path each")


def _path(draft: Draft, name: str, value: Any) -> None:
    if draft.at(f"{_CONFIG}.datasets"):
        return
    if str(value).endswith(_LISTS) and storage.is_file(str(value)):
        try:
            mix = load_mix(str(value))
        except SourceError as error:
            draft.lost.append(str(error))
            draft.add_todo(f"the data of {value}")
            return
        if mix is not None:
            add_all(draft, name, str(value), mix)
            return
    elif str(value).endswith(_LISTS[:2]):
        draft.lose(name, value, "it is not here")
        draft.add_todo(f"the data that {value} lists")
        return
    add_all(draft, name, draft.path, {_CONFIG: draft.file[_CONFIG]})


def add_all(draft: Draft, name: str, path: str, mix: Mapping[str, Any]) -> None:
    """Add the data sets of a mix at `path`."""
    try:
        found = data_sets(path, mix)
    except SourceError as error:
        draft.lost.append(str(error))
        draft.add_todo(f"the data of {name}")
        return
    for data_set in found:
        kind = data_set.data_type
        if kind and not all(place.endswith(SUFFIXES) for place in data_set.locations):
            draft.lose(f"{data_set.described(path)}, data_type", kind, "a file's name tells it")
        draft.add(data_set)


_KEYS: dict[str, Take] = {
    f"{_CONFIG}.processor_config.processor_name": take_processor,
    "model_config.load_from_pretrained_path": take_processor,
    f"{_CONFIG}.processor_config.max_pixels": setting("images.max_pixels"),
    f"{_CONFIG}.processor_config.min_pixels": setting("images.min_pixels"),
    f"{_CONFIG}.processor_config.extra_kwargs.image_max_pixels": setting("images.max_pixels"),
    f"{_CONFIG}.processor_config.extra_kwargs.image_min_pixels": setting("images.min_pixels"),
    f"{_CONFIG}.processor_config.extra_kwargs.video_max_pixels": lost(_FRAMES),
    f"{_CONFIG}.processor_config.extra_kwargs.video_min_pixels": lost(_FRAMES),
    f"{_CONFIG}.processor_config.kwargs": lost("say them in estimate.processor_settings", {}),
    f"{_CONFIG}.dataset_format": read_before,
    f"{_CONFIG}.datasets": _listed,
    f"{_CONFIG}.dataset_path": _path,
    **{
        f"{_CONFIG}.{name}": lost(_FRAMES)
        for name in (
            *("video_sampling_strategy", "video_max_pixels", "video_min_pixels", "frame_num"),
            *("video_max_frames", "video_min_frames", "fps", "video_backend"),
        )
    },
    f"{_CONFIG}.object_storage": lost("write s3://… or gs://… before the paths", "none"),
    f"{_CONFIG}.bucket_name": lost("write s3://BUCKET/… or gs://BUCKET/… before the paths"),
}

LMMS = Peer("lmms", "LMMS Engine", _KEYS, KEYS_OF_PACKS)
