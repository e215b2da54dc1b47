"""Mixes: files that name data sets and how to read them.

Three forms, in JSON or YAML alike: NeMo Automodel's and LLaMA-Factory's meta file, an object of
``name: {file_name, columns, tags, media_dir, sample_ratio …}``; LMMS Engine's ``datasets:``, a list
of ``{path, data_folder, data_type}``; and either of them written for packidx. The training files
that name data are mixes, too (`trainer_files`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.io.unique_keys import load_json, load_yaml
from packidx.records.containers.blocks import local_shard
from packidx.records.sources.mix_entries import HUBS, DataSet, from_list, from_meta

SUFFIXES = (".yaml", ".yml")
"""Endings of files that are always mixes."""
_NAMED = re.compile(r"(.*[-_.])?(mix|meta|dataset_info)\d*([-_.].*)?\.json|.*\.ya?ml", re.DOTALL)

_MAX_BYTES = 16 << 20


def is_named(path: str) -> bool:
    """Whether a file is a mix by its name, as ``mix.json`` and ``meta_train.json`` are."""
    return _NAMED.fullmatch(os.path.basename(path)) is not None


def is_mix(value: Any) -> bool:
    """Whether a JSON value is a mix and not a record."""
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
    """`load_mix` of a local copy, which is kept: a ``.json`` file is read again for its records."""
    if not path.endswith(SUFFIXES) and storage.stat(path).nbytes > _MAX_BYTES:
        return None
    with local_shard(path) as copy:
        return load_mix(copy)


def load_mix(path: str) -> Any:
    """What a mix file holds, or None where a ``.json`` file is none.

    Raises:
        SourceError: it cannot be read, or is YAML and no mix.
    """
    try:
        if urls.is_url(path):
            data = storage.read_range(path, 0, _MAX_BYTES + 1)
        else:
            with open(path, "rb", opener=storage.open_regular) as file:
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
    """The data sets of the mix at `path`, whose relative places are seen from its folder.

    Args:
        wanted: names of those to take; all by default.

    Raises:
        SourceError: an entry cannot be understood; the text names file and entry.
    """
    entries = listed(value)
    folder = os.path.dirname(path)
    if entries is not None:
        chosen = [from_list(path, folder, number, entry) for number, entry in enumerate(entries)]
        _refuse_twice(path, [data_set.name for data_set in chosen])
        missing = [name for name in wanted if name not in {data_set.name for data_set in chosen}]
        chosen = [data_set for data_set in chosen if not wanted or data_set.name in wanted]
    else:
        named = {name: entry for name, entry in value.items() if not name.startswith("_")}
        _refuse_twice(path, list(named))
        missing = [name for name in wanted if name not in named]
        chosen = [
            from_meta(path, folder, name, entry)
            for name, entry in named.items()
            if (not wanted or name in wanted)
        ]
    if missing:
        raise SourceError(f"{path} names no data set {missing[0]!r}: check what stands behind #")
    return chosen


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


_FORMATS = ("json", "jsonl", "csv", "parquet", "arrow", "hf_dataset")
_TEXT_KEYS = (None, "", "messages", "texts")  # of LoongForge's records, known without being told


def listed(value: Mapping[Any, Any]) -> list[Any] | None:
    """The entries, as `mix_entries.from_list` takes them; None where `value` is no such file."""
    inner = value.get("dataset_config")
    config = inner if isinstance(inner, dict) else {}
    for section in (value, config):
        entries = section.get("datasets")
        if (
            isinstance(entries, list)
            and entries
            and all(isinstance(each, dict) for each in entries)
        ):
            return entries
    if config.get("dataset_path"):
        return [_of_lmms(config)]
    data = value.get("data")
    if isinstance(data, dict) and data.get("wds_dir"):
        return [_of_loongforge(data)]
    if value and all(map(is_of_internvl, value.values())):
        return [_of_internvl(str(name), entry) for name, entry in value.items()]
    return None


def is_of_internvl(entry: Any) -> bool:
    """Whether it is a data set of InternVL's meta file."""
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


def _of_lmms(config: Mapping[str, Any]) -> dict[str, Any]:
    form = config.get("dataset_format")
    # A list of data sets in a file of its own says itself what it is.
    return {"path": config["dataset_path"], "data_type": form if form in _FORMATS else None}


def _of_loongforge(data: Mapping[str, Any]) -> dict[str, Any]:
    key = data.get("template_text_key")
    columns = {} if key in _TEXT_KEYS else {"messages": key}
    return {"path": data["wds_dir"], "columns": columns}
