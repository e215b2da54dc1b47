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
from typing import Any

import orjson

from packidx.errors import OptionError, SourceError
from packidx.io import storage, urls
from packidx.io.unique_keys import load_json, load_yaml
from packidx.records.containers.base import open_regular
from packidx.records.layout import Layout

SUFFIXES = (".yaml", ".yml")
"""Endings of files that are always mixes."""

_MAX_BYTES = 16 << 20
_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_PREFERENCES = ("chosen", "rejected", "kto_tag")
_COMMON_KEYS = ("file_name", "columns", "tags", "media_dir", "sample_ratio", "delimiter")
_META_KEYS = (
    *_COMMON_KEYS,
    *("formatting", "split", "ranking", "subset", "folder", "num_samples"),
)
_LIST_KEYS = (
    *("path", "json_path", "name", "data_folder", "data_type", "sampling_strategy"),
    *_COMMON_KEYS,
)
_DATA_TYPES = ("json", "jsonl", "csv", "tsv", "parquet", "arrow")
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_SHARE = re.compile(r"random:(\d+(?:\.\d+)?)%")


@dataclass(frozen=True)
class DataSet:
    """One data set that a mix names."""

    name: str | None
    """None: the mix gives it none."""
    places: tuple[str, ...]
    """Files, globs or folders, seen from the working directory."""
    layout: Layout
    data_type: str | None = None
    """What its files hold, for those whose names do not say."""

    def described(self, path: str) -> str:
        """How an error calls this data set of the mix at `path`."""
        return f"{path}, data set {self.name or self.places[0]!r}"


def is_mix(value: Any) -> bool:
    """Whether a JSON value is a mix and not a record."""
    if not isinstance(value, dict) or not value:
        return False
    if _listed(value) is not None:
        return True
    if not all(isinstance(name, str) for name in value):  # YAML's 5: and yes:
        return False
    entries = [entry for name, entry in value.items() if not name.startswith("_")]
    return bool(entries) and all(
        isinstance(entry, dict) and not {"file_name", *_HUBS}.isdisjoint(entry) for entry in entries
    )


def load_mix(path: str) -> Any:
    """What a mix file holds, or None where a ``.json`` file is none.

    Raises:
        SourceError: it cannot be read, or is YAML and no mix.
    """
    try:
        if urls.is_url(path):
            data = storage.read_range(path, 0, _MAX_BYTES + 1)
        else:
            with open(path, "rb", opener=open_regular) as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}; check the path") from None
    if path.endswith(SUFFIXES):
        value = _yaml(path, data)
        if not is_mix(value):
            raise SourceError(
                f"{path} is no mix: write `datasets:` and a list of path, data_folder and "
                "data_type, or for each data set its name and under it file_name, columns, tags"
            )
        return value
    if len(data) > _MAX_BYTES or data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return None
    try:
        value = orjson.loads(data)
    except ValueError:
        return None
    return _unique(path, data) if is_mix(value) else None


def _unique(path: str, data: bytes) -> Any:
    """The mix in a JSON file."""
    try:
        return load_json(data)
    except ValueError as error:
        raise SourceError(f"{path} is a mix of which a part would be lost: {error}") from None


def _yaml(path: str, data: bytes) -> Any:
    if len(data) > _MAX_BYTES:
        raise SourceError(f"{path} is over {_MAX_BYTES >> 20} MiB: data does not belong in YAML")
    try:
        return load_yaml(data)
    except ValueError as error:
        raise SourceError(f"{path} is not valid YAML: {error}") from None


def data_sets(path: str, value: Any, wanted: Sequence[str] = ()) -> list[DataSet]:
    """The data sets of a mix.

    Args:
        path: the mix file; relative places in it are seen from its folder.
        value: what it holds.
        wanted: names of those to take; all by default.

    Raises:
        SourceError: an entry cannot be understood; the text names file and entry.
    """
    listed = _listed(value)
    folder = os.path.dirname(path)
    if listed is not None:
        found = [_from_list(path, folder, number, entry) for number, entry in enumerate(listed)]
        _refuse_twice(path, [one.name for one in found])
        missing = [name for name in wanted if name not in {one.name for one in found}]
        found = [one for one in found if not wanted or one.name in wanted]
    else:
        named = {name: entry for name, entry in value.items() if not name.startswith("_")}
        _refuse_twice(path, list(named))
        missing = [name for name in wanted if name not in named]
        found = [
            _from_meta(path, folder, name, entry)
            for name, entry in named.items()
            if (not wanted or name in wanted)
        ]
    if missing:
        raise SourceError(f"{path} names no data set {missing[0]!r}: check what stands behind #")
    return found


def _refuse_twice(path: str, names: Sequence[str | None]) -> None:
    """
    Raises:
        SourceError: two data sets have one name, but for blanks around it and how it is composed.
    """
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


def _listed(value: Mapping[str, Any]) -> list[Any] | None:
    """LMMS Engine's list, at the top or inside a training configuration."""
    inner = value.get("dataset_config")
    for place in (value, inner if isinstance(inner, dict) else {}):
        listed = place.get("datasets")
        if isinstance(listed, list) and listed and all(isinstance(one, dict) for one in listed):
            return listed
    return None


def _from_meta(path: str, folder: str, name: str, entry: Mapping[str, Any]) -> DataSet:
    where = f"{path}, data set {name!r}"
    if not entry.get("file_name"):
        hub = next((key for key in _HUBS if entry.get(key)), None)
        wrong = "file_name is missing: give a file, glob or folder"
        if hub is not None:
            wrong = f"{hub} is {entry[hub]!r}, which is not here: download it and give file_name"
        raise SourceError(f"{where}: {wrong}, or name the data sets to take, {path}#NAME,NAME")
    _check_keys(where, entry, (*_META_KEYS, *_HUBS))
    _refuse_preferences(where, entry)
    columns = dict(entry.get("columns") or {})
    if entry.get("formatting") == "alpaca":
        columns = {**_ALPACA, **columns}
        columns = {k: v for k, v in columns.items() if k != v}
    layout = _layout(where, entry, columns, _media_folder(where, folder, entry.get("media_dir")))
    places = [_beside(folder, place) for place in _places(where, entry["file_name"])]
    split = entry.get("split")
    if split:
        places = [_split(place, split) for place in places]
    return DataSet(name, tuple(places), layout)


def _from_list(path: str, folder: str, number: int, entry: Mapping[str, Any]) -> DataSet:
    where = f"{path}, entry {number} of datasets"
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
    media = entry.get("data_folder") or entry.get("media_dir")
    columns = dict(entry.get("columns") or {})
    layout = _layout(where, entry, columns, _media_folder(where, folder, media))
    places = tuple(_seen(where, folder, place) for place in _places(where, entry[given[0]]))
    name = entry.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        raise SourceError(f"{where}: name is {name!r}, not text")
    return DataSet(name, places, layout, data_type)


def _layout(
    where: str, entry: Mapping[str, Any], columns: dict[str, str], media: str | None
) -> Layout:
    try:
        ratio = entry.get("sample_ratio")
        return Layout(
            columns,
            dict(entry.get("tags") or {}),
            media,
            1.0 if ratio is None else ratio,
            entry.get("delimiter"),
        )
    except (OptionError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: {error}") from None


def _check_keys(where: str, entry: Any, known: Sequence[str]) -> None:
    for key in entry:
        if key not in known and not str(key).startswith("_") and key != "description":
            raise SourceError(f"{where}: {key!r} means nothing here; known: {', '.join(known)}")


def _refuse_preferences(where: str, entry: Mapping[str, Any]) -> None:
    columns = entry.get("columns") or {}
    found = [key for key in _PREFERENCES if key in columns] + ["ranking"] * bool(
        entry.get("ranking")
    )
    if found:
        raise SourceError(f"{where}: {found[0]} is for preference data, which is not packed")
    if entry.get("num_samples"):
        raise SourceError(f"{where}: num_samples is not supported: give a sample_ratio")
    formatting = entry.get("formatting")
    if formatting not in (None, "alpaca", "sharegpt", "openai"):
        raise SourceError(f"{where}: formatting is {formatting!r}, not alpaca, sharegpt or openai")


def _share(where: str, strategy: Any) -> float | None:
    """LLaVA-OneVision's sampling strategy as a ratio."""
    if strategy in (None, "all"):
        return None
    found = _SHARE.fullmatch(strategy) if isinstance(strategy, str) else None
    if found is None:
        raise SourceError(
            f"{where}: sampling_strategy is {strategy!r}: only all and random:N% are known, "
            "since a plan draws its share at random"
        )
    return float(found[1]) / 100


def _places(where: str, given: Any) -> list[str]:
    places = [given] if isinstance(given, str) else given
    if not isinstance(places, list) or not all(isinstance(one, str) and one for one in places):
        raise SourceError(f"{where}: its place is {given!r:.100}, not a path or a list of paths")
    return places


def _split(place: str, split: Any) -> str:
    """The folder of one split, where `place` is a saved dictionary of them."""
    is_dictionary = storage.is_file(urls.join(place, "dataset_dict.json"))
    return urls.join(place, str(split)) if is_dictionary else place


def _media_folder(where: str, folder: str, given: Any) -> str | None:
    if given in (None, ""):
        return None
    if not isinstance(given, str):
        raise SourceError(f"{where}: the media folder is {given!r}, not a path")
    return _seen(where, folder, given)


def _beside(folder: str, place: str) -> str:
    return place if "://" in place else urls.join(folder, place)


def _seen(where: str, folder: str, place: str) -> str:
    """A path that other tools take from the working directory, and people from the mix's folder.

    Raises:
        SourceError: both are there, and are not the same.
    """
    beside = _beside(folder, place)
    if os.path.isabs(place) or urls.is_url(beside) or not os.path.lexists(place):
        return beside
    if os.path.lexists(beside) and not os.path.samefile(beside, place):
        raise SourceError(
            f"{where}: {place} is beside the mix and in the working directory: give a full path"
        )
    return place
