"""Mixes: files that name data sets and how to read them.

Three forms, in JSON or YAML alike: NeMo Automodel's and LLaMA-Factory's meta file, an object of
``name: {file_name, columns, tags, media_dir, sample_ratio …}``; LMMS Engine's ``datasets:``, a list
of ``{path, data_folder, data_type}``; and either of them written for packidx.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import orjson

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Layout
from packidx.io import storage, urls
from packidx.io.unique_keys import load_json, load_yaml
from packidx.records.containers.base import local_shard
from packidx.records.sources import hub

HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_PREFERENCES = ("chosen", "rejected", "kto_tag")
_COMMON_KEYS = (
    *("file_name", "columns", "tags", "ignore", "media_dir", "sample_ratio", "delimiter", "pair"),
)
_META_KEYS = (
    *_COMMON_KEYS,
    *("formatting", "split", "ranking", "subset", "folder", "num_samples"),
)
_LIST_KEYS = (
    *("path", "json_path", "name", "data_folder", "data_type", "sampling_strategy"),
    *_COMMON_KEYS,
)
_DATA_TYPES = ("json", "jsonl", "csv", "tsv", "parquet", "arrow", "hf_dataset")
_SAVED = "hf_dataset"  # a folder or file that says itself what it is, or a name on the Hub
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_SHARE = re.compile(r"random:(\d+(?:\.\d+)?)%")

SUFFIXES = (".yaml", ".yml")
"""Endings of files that are always mixes."""
_NAMED = re.compile(r"(.*[-_.])?(mix|meta|dataset_info)\d*([-_.].*)?\.json|.*\.ya?ml", re.DOTALL)

_MAX_BYTES = 16 << 20


def is_named(path: str) -> bool:
    """Return whether a file is a mix by its name, as ``mix.json`` and ``meta_train.json`` are."""
    return _NAMED.fullmatch(os.path.basename(path)) is not None


def is_mix(value: Any) -> bool:
    """Return whether a JSON value is a mix and not a record."""
    if not isinstance(value, dict) or not value:
        return False
    if listed(value) is not None:
        return True
    if not all(isinstance(name, str) for name in value):  # YAML's 5: and yes:
        return False
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
    if not is_yaml and storage.stat(path).nbytes > _MAX_BYTES:
        return None
    with local_shard(path) as copy:  # which is kept: a .json file is read again for its records
        try:
            with open(copy, "rb", opener=storage.open_regular) as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror}; check the path") from None
    if is_yaml:
        return _yaml(path, data)
    try:
        value = orjson.loads(data) if len(data) <= _MAX_BYTES else None
    except ValueError:
        return None
    if not is_mix(value):
        return None
    try:
        return load_json(data)
    except ValueError as error:
        raise SourceError(f"{path} is a mix of which a part would be lost: {error}") from None


def _yaml(path: str, data: bytes) -> Any:
    if len(data) > _MAX_BYTES:
        raise SourceError(f"{path} is over {_MAX_BYTES >> 20} MiB: data does not belong in YAML")
    try:
        value = load_yaml(data)
    except ValueError as error:
        raise SourceError(f"{path} is not valid YAML: {error}") from None
    if not is_mix(value):
        raise SourceError(
            f"{path} is no mix: write `datasets:` and a list of path, data_folder and "
            "data_type, or for each data set its name and under it file_name, columns, tags"
        )
    return value


def data_sets(path: str, value: Any, wanted: Sequence[str] = ()) -> list[DataSet]:
    """The data sets of the mix at `path`, whose relative places are seen from its folder.

    Args:
        wanted: names of those to take; all by default.

    Raises:
        SourceError: an entry cannot be understood; the text names file and entry.
    """
    entries = listed(value)
    if entries is None:
        named = [(name, entry) for name, entry in value.items() if not name.startswith("_")]
    else:
        named = [(entry.get("name"), entry) for entry in entries]
    names = [name for name, _ in named]
    for number, name in enumerate(names):
        if name is not None and (not isinstance(name, str) or not name):
            text = f"{path}, entry {number} of datasets: name is {name!r}, not text"
            raise SourceError(text)
    _refuse_twice(path, names)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SourceError(f"{path} names no data set {missing[0]!r}: check what stands behind #")
    return [
        _from_meta(path, f"{path}, data set {name!r}", name, entry)
        if entries is None
        else _from_list(path, f"{path}, entry {number} of datasets", name, entry)
        for number, (name, entry) in enumerate(named)
        if not wanted or name in wanted
    ]


def _refuse_twice(path: str, names: Sequence[str | None]) -> None:
    """Raise a SourceError if two data sets have one name, but for blanks and how it is composed."""
    seen: dict[str, int] = {}
    for number, name in enumerate(names):
        if name is None:
            continue
        first = seen.setdefault(unicodedata.normalize("NFC", name).strip(), number)
        if first != number:
            raise SourceError(
                f"{path} names the data set {name!r} twice, as entries {first} and {number}: give "
                "one of them another name, or make them one entry with a list of files"
            )


def listed(value: Mapping[Any, Any]) -> list[Any] | None:
    """The entries, as `_from_list` takes them; None where `value` is no such file."""
    entries = value.get("datasets")
    if isinstance(entries, list) and entries and all(isinstance(each, dict) for each in entries):
        return entries
    if value and all(map(is_of_internvl, value.values())):
        return [_of_internvl(str(name), entry) for name, entry in value.items()]
    return None


def is_of_internvl(entry: Any) -> bool:
    """Return whether it is a data set of InternVL's meta file."""
    return isinstance(entry, dict) and {"root", "annotation"} <= entry.keys()


def _of_internvl(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    of_no_length = ("root", "annotation", "repeat_time", "data_augment", "length")
    others = {key: value for key, value in entry.items() if key not in of_no_length}
    return {
        **others,
        "name": name,
        "path": entry["annotation"],
        "data_folder": entry["root"],
        "sample_ratio": entry.get("repeat_time"),
    }


# -- entries ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSet:
    """One data set that a mix names."""

    name: str | None
    """None: the mix gives it none."""
    locations: tuple[str, ...]
    """Files, globs or folders, seen from the working directory."""
    layout: Layout
    data_type: str | None = None
    """What its files hold, for those whose names do not say."""

    def described(self, path: str) -> str:
        """Return how an error calls this data set of the mix at `path`."""
        return f"{path}, data set {self.name or self.locations[0]!r}"


def _from_meta(path: str, where: str, name: str, entry: Mapping[str, Any]) -> DataSet:
    """The data set of an entry of NeMo Automodel's and LLaMA-Factory's meta file.

    Raises:
        SourceError: it cannot be understood.
    """
    if not entry.get("file_name"):
        key = next((key for key in HUBS if entry.get(key)), None)
        wrong = "file_name is missing: give a file, glob or folder"
        if key is not None:
            wrong = f"{key} is {entry[key]!r}, which is not here: download it and give file_name"
        if key == "hf_hub_url":
            wrong += f", or give 'hf://datasets/{entry[key]}' as file_name"
        raise SourceError(f"{where}: {wrong}, or name the data sets to take, {path}#NAME,NAME")
    _check_keys(where, entry, (*_META_KEYS, *HUBS))
    _refuse_preferences(where, entry)
    columns = dict(entry.get("columns") or {})
    if entry.get("formatting") == "alpaca":
        columns = {**_ALPACA, **columns}
        if entry.get("pair") is not None:
            del columns["response"]
        columns = {k: v for k, v in columns.items() if k != v}
    folder, split = os.path.dirname(path), entry.get("split")
    layout = _layout(where, folder, {**entry, "columns": columns}, entry.get("media_dir"))
    locations = [_beside(folder, location) for location in _locations(where, entry["file_name"])]
    if split:
        locations = [_split(location, split) for location in locations]
    return DataSet(name, tuple(locations), layout)


def _from_list(path: str, where: str, name: str | None, entry: Mapping[str, Any]) -> DataSet:
    """The data set of an entry of LMMS Engine's list; else as `_from_meta`."""
    _check_keys(where, entry, _LIST_KEYS)
    given = [key for key in ("path", "json_path", "file_name") if entry.get(key)]
    if len(given) != 1:
        raise SourceError(f"{where}: give one path, not {len(given)}")
    data_type = entry.get("data_type")
    if data_type is not None and data_type not in _DATA_TYPES:
        raise SourceError(f"{where}: data_type is {data_type!r}; known: {', '.join(_DATA_TYPES)}")
    ratio = _share(where, entry.get("sampling_strategy"))
    if ratio is not None:
        entry = {**entry, "sample_ratio": ratio}
    folder = os.path.dirname(path)
    layout = _layout(where, folder, entry, entry.get("data_folder") or entry.get("media_dir"))
    places = _locations(where, entry[given[0]])
    locations = [_seen(where, folder, place) for place in places]
    if data_type == _SAVED:
        data_type, locations = None, list(map(_of_hf, repeat(where), locations, places))
    return DataSet(name, tuple(locations), layout, data_type)


def _layout(where: str, folder: str, entry: Mapping[str, Any], media: Any) -> Layout:
    if media not in (None, "") and not isinstance(media, str):
        raise SourceError(f"{where}: the media folder is {media!r}, not a path")
    try:
        ratio = entry.get("sample_ratio")
        return Layout(
            dict(entry.get("columns") or {}),
            dict(entry.get("tags") or {}),
            _seen(where, folder, media) if media else None,
            1.0 if ratio is None else ratio,
            entry.get("delimiter"),
            entry.get("pair"),
            entry.get("ignore") or (),
        )
    except (OptionError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: {error}") from None


def _check_keys(where: str, entry: Any, known: Sequence[str]) -> None:
    for key in entry:
        if key not in known and not str(key).startswith("_") and key != "description":
            raise SourceError(f"{where}: {key!r} means nothing here; known: {', '.join(known)}")


def _refuse_preferences(where: str, entry: Mapping[str, Any]) -> None:
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


def _share(where: str, strategy: Any) -> float | None:
    """LLaVA-OneVision's sampling strategy as a ratio."""
    if strategy in (None, "all"):
        return None
    percent = _SHARE.fullmatch(strategy) if isinstance(strategy, str) else None
    if percent is None:
        raise SourceError(
            f"{where}: sampling_strategy is {strategy!r}: only all and random:N% are known, "
            "since a plan draws its share at random"
        )
    return float(percent[1]) / 100


def _locations(where: str, given: Any) -> list[str]:
    locations = [given] if isinstance(given, str) else given
    if not isinstance(locations, list) or not all(isinstance(p, str) and p for p in locations):
        raise SourceError(f"{where}: its place is {given!r:.100}, not a path or a list of paths")
    return locations


def _of_hf(where: str, location: str, given: str) -> str:
    """Return where the train split is, which LMMS Engine takes of its ``hf_dataset``.

    Args:
        location: of `given`, seen from the working directory; of what is not there, `given` may be
            the name of a data set of the Hub.

    Raises:
        SourceError: it is not here, or splits are not told apart.
    """
    if given.startswith(hub.SCHEME):
        return given
    if storage.is_file(location) or storage.is_file(urls.join(location, "state.json")):
        return location
    if storage.is_file(urls.join(location, "dataset_dict.json")):
        return urls.join(location, "train")
    is_here = storage.is_folder(location)
    if not is_here and hub.named(given) is not None:
        return given
    raise SourceError(
        f"{where}: data_type is 'hf_dataset' and {location} is "
        + ("no folder that `datasets` has saved: " if is_here else "not here: download it and ")
        + "give the files of its train split as path, a glob such as DIR/data/train-*.parquet, "
        "and leave data_type out"
    )


def _split(location: str, split: Any) -> str:
    """The folder of one split, where `location` is a saved dictionary of them, or it of a data set
    of the Hub."""
    if location.startswith(hub.SCHEME):
        whole = hub.named(location) is not None and "#" not in location
        return f"{location}#{split}" if whole else location
    is_dictionary = storage.is_file(urls.join(location, "dataset_dict.json"))
    return urls.join(location, str(split)) if is_dictionary else location


def _beside(folder: str, location: str) -> str:
    return location if "://" in location else urls.join(folder, location)


def _seen(where: str, folder: str, location: str) -> str:
    """A path that other tools take from the working directory, and people from the mix's folder.

    Raises:
        SourceError: both are there, and are not the same.
    """
    beside = _beside(folder, location)
    if os.path.isabs(location) or urls.is_url(beside) or not os.path.lexists(location):
        return beside
    if os.path.lexists(beside) and not os.path.samefile(beside, location):
        raise SourceError(
            f"{where}: {location} is beside the mix and in the working directory: give a full path"
        )
    return location
