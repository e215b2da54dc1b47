"""Mixes: files that name data sets and how to read them.

NeMo Automodel's and LLaMA-Factory's meta file, in JSON or YAML: an object of
``name: {file_name, columns, tags, media_dir, sample_ratio …}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import orjson

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Layout
from packidx.io import storage, urls
from packidx.io.option_files import load_document, section
from packidx.io.storage import reading
from packidx.records.sources import hub

_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_NOT_READ = frozenset((*_HUBS, "subset", "folder"))
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_NAMED = re.compile(r"(.*[-_.])?(mix|meta|dataset_info)\d*([-_.].*)?\.json|.*\.ya?ml", re.DOTALL)
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class DataSet:
    """One data set that a mix or a recipe names."""

    name: str
    locations: tuple[str, ...]
    """Files, globs or folders, seen from the working directory."""
    layout: Layout


class _Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A data set as a mix has it."""

    file_name: str | list[str] = ""
    columns: dict[str, str] = {}
    tags: dict[str, str] = {}
    ignore: list[str] = []
    media_dir: str | None = None
    sample_ratio: float = 1.0
    delimiter: str | None = None
    pair: str | None = None
    answers: str | None = None
    split: str | None = None
    formatting: Literal["alpaca", "sharegpt", "openai"] | None = None
    ranking: bool = False


def is_mix(value: Any) -> bool:
    """Return whether a JSON value is a mix and not a record."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False  # YAML's 5: and yes:
    entries = [entry for name, entry in value.items() if not name.startswith("_")]
    return bool(entries) and all(
        isinstance(entry, dict) and not {"file_name", *_HUBS}.isdisjoint(entry) for entry in entries
    )


def mix_in_file(path: str) -> Any:
    """Return what a file holds that is a mix by its name; None for any other file.

    Raises:
        SourceError: it cannot be read, is YAML and no mix, or a part of it would be lost.
    """
    name = os.path.basename(path)
    if _NAMED.fullmatch(name) is None or not storage.is_file(path):
        return None
    with reading(path):
        data = storage.read_range(path, 0, _MAX_BYTES + 1)
    if name.endswith(".json"):
        try:
            if not is_mix(orjson.loads(data)):
                return None
        except ValueError:  # lines, or cut
            return None
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has over {_MAX_BYTES >> 20} MiB: data does not belong in YAML")
        value = load_document(name, data)
    except ValueError as error:
        raise SourceError(f"{path} is no valid mix: {error}") from None
    if is_mix(value):
        return value
    raise SourceError(
        f"{path} is not a mix: write for each data set its name and under it file_name, columns, "
        "tags"
    )


def data_sets(path: str, value: Any, wanted: Sequence[str] = ()) -> list[DataSet]:
    """The data sets of the mix at `path`, whose relative places are seen from its folder.

    Args:
        wanted: names of those to take; all by default.

    Raises:
        SourceError: an entry cannot be understood; the text names file and entry.
    """
    for name in wanted:
        if name not in value:
            raise SourceError(f"{path} names no data set {name!r}: check what stands behind #")
    taken = [name for name in value if not name.startswith("_") and (not wanted or name in wanted)]
    return [_data_set(path, name, value[name]) for name in taken]


def _data_set(path: str, name: str, given: Mapping[str, Any]) -> DataSet:
    where, folder = f"{path}, data set {name!r}", os.path.dirname(path)
    stated = {
        key: value
        for key, value in given.items()
        if value not in (None, "") and not str(key).startswith("_") and key not in _NOT_READ
    }
    try:
        entry = section(where, stated, _Entry)
        if not entry.file_name:
            hubs = [
                f"{key} is {given[key]!r}, which is not here: " for key in _HUBS if key in given
            ]
            text = f"{''.join(hubs[:1])}give a file_name (a file, glob, folder, or"
            raise OptionError(f"{text} 'hf://datasets/ORG/NAME'), or take others, {path}#NAME,NAME")
        columns = dict(entry.columns)
        if entry.formatting == "alpaca":
            columns = {**_ALPACA, **columns}
            if entry.pair is not None:
                del columns["response"]
        layout = Layout(
            {name: own for name, own in columns.items() if name != own},
            dict(entry.tags),
            _seen(folder, entry.media_dir) if entry.media_dir else None,
            entry.sample_ratio,
            entry.delimiter,
            entry.pair,
            tuple(entry.ignore),
            entry.answers,
        )
    except OptionError as error:
        raise SourceError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    files = [entry.file_name] if isinstance(entry.file_name, str) else entry.file_name
    places = [_seen(folder, file) for file in files]
    for number, place in enumerate(places if entry.split else ()):
        if storage.is_file(urls.join(place, "dataset_dict.json")):
            places[number] = urls.join(place, str(entry.split))
        elif place.startswith(hub.SCHEME) and hub.named(place) and "#" not in place:
            places[number] = f"{place}#{entry.split}"
    return DataSet(name, tuple(places), layout)


def _seen(folder: str, location: str) -> str:
    """Return a path that is given as seen from the folder of its mix."""
    return location if "://" in location else urls.join(folder, location)
