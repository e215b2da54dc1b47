"""Data sets that a trainer's own file names: LMMS Engine's, LoongForge's and InternVL's, as entries
of a list.

LMMS Engine has ``datasets:``, a list, at the top or under ``dataset_config:``, or there one
``dataset_path`` and its ``dataset_format``; LoongForge's offline packing has ``data: {wds_dir}``;
InternVL's meta file has ``name: {root, annotation, data_augment, repeat_time, length}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
