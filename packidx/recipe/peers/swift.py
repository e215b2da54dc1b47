"""ms-swift."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from packidx.plan.options.trainers.swift import SWIFT as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import (
    OF_EVALUATION,
    OF_TEMPLATE,
    Peer,
    Take,
    lost,
    object_in,
    read_before,
    setting,
    take_processor,
)
from packidx.recipe.peers.places import hub_name
from packidx.records.layout import COLUMNS, Layout

_NAME = re.compile(r"(?:(HF|MS)::)?(.+?)(?::([^:/#\\]+(?:/[^:#]+)?))?(?:#(\d+))?", re.DOTALL)
_SHRINKS = (
    "ms-swift shrinks images to it before the processor sees them, here the processor does, so an "
    "image may come to a few tokens more or fewer than there"
)


def _model(draft: Draft, name: str, value: Any) -> None:
    take_processor(draft, name, value)
    if isinstance(value, str) and not os.path.exists(value) and not _is_true(draft.at("use_hf")):
        draft.notes.append(f"{name}: {value} is ModelScope's there, and looked for on the Hub here")


def _datasets(draft: Draft, name: str, value: Any) -> None:
    names = value.split() if isinstance(value, str) and not os.path.exists(value) else value
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        draft.lose(name, value, "it is no list of data sets")
        return
    layout = Layout(_columns(draft))
    for each in names:
        _add(draft, name, each, layout)


def _add(draft: Draft, name: str, given: str, layout: Layout) -> None:
    match = _NAME.fullmatch(given)
    store, place, subset, number = match.groups() if match else (None, given, None, None)
    if os.path.exists(given) or "://" in given:
        store, place, subset, number = None, given, None, None
    if number:
        draft.lose(name, given, f"all its samples are taken, and not {number}; see plan.mix")
    is_path = os.path.exists(place) or "://" in place or "." in os.path.basename(place)
    if is_path and store is None:
        if subset:
            draft.lose(name, given, f"all of {place} is taken, and not {subset} alone")
        draft.add_place(place, layout=layout)
    elif store == "HF" or (store is None and _is_true(draft.at("use_hf"))):
        for part in (subset or "").split("/"):
            draft.add_place(hub_name(place, part or None), layout=layout)
    else:
        draft.lose(name, given, "it is on ModelScope, which packidx does not read")
        stem = place.rpartition("/")[2]
        draft.add_todo(f"{place} of ModelScope, downloaded, or hf://datasets/…", stem)


def _columns(draft: Draft) -> Mapping[str, str]:
    given = draft.at("columns")
    if given is None:
        return {}
    columns = object_in(given)
    if columns is None:
        draft.lose("columns", given, "it is no object of names")
        return {}
    unknown = [key for key, standard in columns.items() if standard not in COLUMNS]
    for key in unknown:
        draft.lose(f"columns.{key}", columns[key], f"known are {', '.join(COLUMNS)}")
    return {standard: key for key, standard in columns.items() if key not in unknown}


def _arguments(draft: Draft, name: str, value: Any) -> None:
    arguments = object_in(value)
    if arguments is None:
        draft.lose(name, value, "it is no object of arguments")
        return
    for key, argument in arguments.items():
        if str(key).lower() in ("max_pixels", "min_pixels"):
            setting(f"images.{str(key).lower()}")(draft, f"{name}.{key}", argument)
        else:
            draft.lose(f"{name}.{key}", argument, "say it in estimate.processor_settings")


def _is_true(value: Any) -> bool:
    return value is True or value in (1, "1", "true")


_KEYS: dict[str, Take] = {
    "use_hf": read_before,
    "model": _model,
    "model_id_or_path": _model,
    "max_pixels": setting("images.max_pixels", _SHRINKS),
    "model_kwargs": _arguments,
    "columns": read_before,
    "dataset": _datasets,
    "cached_dataset": lost("name the samples as they are before they are cached", []),
    "val_dataset": lost(OF_EVALUATION, []),
    "custom_dataset_info": lost("name the files of its data sets as sources", []),
    "custom_register_path": lost("its code is not run: write it as estimate.transform", []),
    "template": lost(OF_TEMPLATE),
    "system": lost("add it to each record by estimate.transform"),
    "enable_thinking": lost("estimate.labels: no-thinking trains none"),
    "new_special_tokens": lost("put them into the processor's folder, before it is counted", []),
}

SWIFT = Peer("swift", "ms-swift", _KEYS, KEYS_OF_PACKS)
