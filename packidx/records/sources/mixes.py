"""Mixes: files that name data sets and how to read them.

NeMo Automodel's and LLaMA-Factory's meta file, in JSON or YAML: an object of
``name: {file_name, columns, tags, media_dir, sample_ratio …}``.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Layout
from packidx.io import storage, urls
from packidx.io.option_files import load_yaml
from packidx.io.storage import reading
from packidx.io.unique_keys import load_json
from packidx.records.containers.base import local_shard
from packidx.records.sources import hub

HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_KEYS = (
    *("file_name", "columns", "tags", "ignore", "media_dir", "sample_ratio", "delimiter", "pair"),
    *("split", "formatting", "ranking", "subset", "folder", "num_samples", *HUBS),
)
_PREFERENCES = ("chosen", "rejected", "kto_tag")
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}

SUFFIXES = (".yaml", ".yml")
"""Endings of files that are always mixes."""
_NAMED = re.compile(r"(.*[-_.])?(mix|meta|dataset_info)\d*([-_.].*)?\.json|.*\.ya?ml", re.DOTALL)

_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class DataSet:
    """One data set that a mix or a recipe names."""

    name: str
    locations: tuple[str, ...]
    """Files, globs or folders, seen from the working directory."""
    layout: Layout


def is_named(path: str) -> bool:
    """Return whether a file is a mix by its name, as ``mix.json`` and ``meta_train.json`` are."""
    return _NAMED.fullmatch(os.path.basename(path)) is not None


def is_mix(value: Any) -> bool:
    """Return whether a JSON value is a mix and not a record."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False  # YAML's 5: and yes:
    entries = [entry for name, entry in value.items() if not name.startswith("_")]
    return bool(entries) and all(
        isinstance(entry, dict) and not {"file_name", *HUBS}.isdisjoint(entry) for entry in entries
    )


def mix_in_file(path: str) -> Any:
    """Return what a mix file holds, or None where a ``.json`` file is none.

    Raises:
        SourceError: it cannot be read, is YAML and no mix, or a part of it would be lost.
    """
    is_yaml = path.endswith(SUFFIXES)
    with reading(path):
        is_large = storage.stat(path).nbytes > _MAX_BYTES
        with local_shard(path) as copy:  # which is kept: JSON is read again for its records
            data = b"" if is_large else storage.read(copy)
    if is_yaml and is_large:
        raise SourceError(f"{path} is over {_MAX_BYTES >> 20} MiB: data does not belong in YAML")
    if is_yaml:
        try:
            value = load_yaml(data)
        except ValueError as error:
            raise SourceError(f"{path} is not valid YAML: {error}") from None
        if is_mix(value):
            return value
        raise SourceError(
            f"{path} is not a mix: write for each data set its name and under it file_name, "
            "columns, tags"
        )
    try:
        if not is_mix(orjson.loads(data)):
            return None
    except ValueError:
        return None
    try:
        return load_json(data)
    except ValueError as error:
        raise SourceError(f"{path} is a mix of which a part would be lost: {error}") from None


def data_sets(path: str, value: Any, wanted: Sequence[str] = ()) -> list[DataSet]:
    """The data sets of the mix at `path`, whose relative places are seen from its folder.

    Args:
        wanted: names of those to take; all by default.

    Raises:
        SourceError: an entry cannot be understood; the text names file and entry.
    """
    seen: dict[str, str] = {}
    for name in value:
        if seen.setdefault(unicodedata.normalize("NFC", name).strip(), name) != name:
            raise SourceError(
                f"{path} names the data set {name!r} twice: give one of them another name, or make "
                "them one entry with a list of files"
            )
    for name in wanted:
        if name not in value:
            raise SourceError(f"{path} names no data set {name!r}: check what stands behind #")
    return [
        _data_set(path, name, entry)
        for name, entry in value.items()
        if not name.startswith("_") and (not wanted or name in wanted)
    ]


# -- entries ---------------------------------------------------------------------------------------


def _data_set(path: str, name: str, given: Mapping[str, Any]) -> DataSet:
    """The data set of an entry of the mix at `path`.

    Raises:
        SourceError: it cannot be understood.
    """
    where = f"{path}, data set {name!r}"
    for key in given:
        if key not in _KEYS and not str(key).startswith("_"):
            raise SourceError(f"{where}: {key!r} means nothing here; known: {', '.join(_KEYS)}")
    entry = {key: value for key, value in given.items() if value not in (None, "")}
    _refuse_others(path, where, entry)
    columns = dict(entry.get("columns") or {})
    if entry.get("formatting") == "alpaca":
        columns = {**_ALPACA, **columns}
        if entry.get("pair") is not None:
            del columns["response"]
        columns = {k: v for k, v in columns.items() if k != v}
    folder = os.path.dirname(path)
    places = entry["file_name"]
    places = [places] if isinstance(places, str) else places
    if not isinstance(places, list) or not all(isinstance(p, str) and p for p in places):
        raise SourceError(f"{where}: its place is {places!r:.100}, not a path or a list of paths")
    locations = [_place(folder, place, entry) for place in places]
    return DataSet(name, tuple(locations), _layout(where, folder, {**entry, "columns": columns}))


def _refuse_others(path: str, where: str, entry: Mapping[str, Any]) -> None:
    """Raise a SourceError for what an entry states that is not done."""
    if not entry.get("file_name"):
        key = next((key for key in HUBS if entry.get(key)), None)
        wrong = "give a file_name: a file, glob or folder"
        if key is not None:
            wrong = f"{key} is {entry[key]!r}, which is not here: download it and give file_name"
        if key == "hf_hub_url":
            wrong += f", or give 'hf://datasets/{entry[key]}' as file_name"
        raise SourceError(f"{where}: {wrong}, or name the data sets to take, {path}#NAME,NAME")
    columns = entry.get("columns") or {}
    stated = [key for key in _PREFERENCES if key in columns]
    stated += ["ranking"] * bool(entry.get("ranking"))
    if entry.get("pair") is not None:
        stated = [key for key in stated if key == "kto_tag"]
    if stated:
        cure = "leave it out" if stated[0] == "kto_tag" else 'give "pair", too: "chosen", say'
        raise SourceError(f"{where}: {stated[0]} is for preference data: {cure}")
    if entry.get("num_samples"):
        raise SourceError(f"{where}: num_samples is not supported: give a sample_ratio")
    formatting = entry.get("formatting")
    if formatting not in (None, "alpaca", "sharegpt", "openai"):
        raise SourceError(f"{where}: formatting is {formatting!r}, not alpaca, sharegpt or openai")


def _layout(where: str, folder: str, entry: Mapping[str, Any]) -> Layout:
    media = entry.get("media_dir")
    if media is not None and not isinstance(media, str):
        raise SourceError(f"{where}: the media folder is {media!r}, not a path")
    try:
        return Layout(
            dict(entry["columns"]),
            dict(entry.get("tags") or {}),
            _seen(folder, media) if media else None,
            entry.get("sample_ratio", 1.0),
            entry.get("delimiter"),
            entry.get("pair"),
            entry.get("ignore") or (),
        )
    except (OptionError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: {error}") from None


def _place(folder: str, given: str, entry: Mapping[str, Any]) -> str:
    """Where files of a data set are, or what it is called on the Hub."""
    place, split = _seen(folder, given), entry.get("split")
    if split and storage.is_file(urls.join(place, "dataset_dict.json")):
        return urls.join(place, str(split))
    if split and place.startswith(hub.SCHEME) and hub.named(place) and "#" not in place:
        return f"{place}#{split}"
    return place


def _seen(folder: str, location: str) -> str:
    """Return a path that is given as seen from the folder of its mix."""
    return location if "://" in location else urls.join(folder, location)
