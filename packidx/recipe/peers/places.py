"""Where a trainer's data set is, as packidx names it: a file, a folder, or a name on the Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from packidx.io import urls
from packidx.recipe.peers.draft import Draft
from packidx.records.sources import hub

_SLICE = re.compile(r"\[[^\]]*\]")
_BUILDERS = ("json", "csv", "parquet", "arrow", "text", "webdataset")
"""Names that `datasets` takes in place of a path, for files that stand elsewhere."""


def hub_name(
    name: str, config: str | None = None, split: str | None = None, revision: str | None = None
) -> str:
    """A data set of the Hub: ``hf://datasets/org/name@revision:config#split``."""
    revised = f"@{revision}" if revision else ""
    configured = f":{config}" if config else ""
    return f"hf://datasets/{name}{revised}{configured}#{split or 'train'}"


def places_of(draft: Draft, where: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The places of a data set as `datasets.load_dataset` is asked for it.

    Args:
        where: what sentences call it.
        entry: with ``path``, and ``name``, ``split``, ``revision``, ``data_files``, ``data_dir``.
    """
    path, files = str(entry["path"]), entry.get("data_files")
    split = _split(draft, where, entry.get("split"))
    if isinstance(files, dict):
        files = files.get(split)
    wanted = [files] if isinstance(files, str) else files
    folder = str(entry.get("data_dir") or "")
    is_name = not os.path.exists(path) and hub.named(path) is not None
    if isinstance(wanted, list) and wanted:
        base = "" if path in _BUILDERS else f"hf://datasets/{path}" if is_name else path
        base = urls.join(base, folder) if folder else base
        return tuple(urls.join(base, str(file)) if base else str(file) for file in wanted)
    if path in _BUILDERS and folder:
        return (folder,)
    if is_name:
        if folder:
            return (f"hf://datasets/{path}/{folder}",)
        return (hub_name(path, entry.get("name"), split, entry.get("revision")),)
    place = urls.join(path, folder) if folder else path
    if os.path.isfile(os.path.join(place, "dataset_dict.json")):
        return (urls.join(place, split),)
    if split != "train":
        draft.lose(f"{where}.split", split, "all of what is at its path is taken")
    return (place,)


def _split(draft: Draft, where: str, given: Any) -> str:
    split = str(given or "train")
    whole = _SLICE.sub("", split)
    if whole != split:
        draft.lose(f"{where}.split", split, f"all of {whole} is taken; plan.max_packs takes less")
    return whole.replace("+", ",")
