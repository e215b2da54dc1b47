"""Files that name data alone: InternVL's meta file, and NeMo's and LLaMA-Factory's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.llamafactory import add_entry
from packidx.recipe.peers.lmms import add_all
from packidx.recipe.peers.peer import Peer
from packidx.records.sources.trainer_files import is_of_internvl, listed

_OF_INTERNVL = ("root", "annotation", "data_augment", "repeat_time", "length")
INTERNVL = Peer("internvl", "InternVL", {})
META = Peer("meta", "a meta file", {})
LIST = Peer("list", "a list of data sets", {})


def meta_of(file: Mapping[str, Any]) -> Peer | None:
    """The kind of meta file that it is; None where it is none."""
    entries = [entry for name, entry in file.items() if not str(name).startswith("_")]
    if entries and all(map(is_of_internvl, entries)):
        return INTERNVL
    if entries and all(
        isinstance(entry, dict) and (entry.keys() & {"file_name", "hf_hub_url", "ms_hub_url"})
        for entry in entries
    ):
        return META
    if file.keys() == {"datasets"} and listed(file) is not None:
        return LIST
    return None


def read_meta(draft: Draft, peer: Peer) -> None:
    """Add all data sets of a meta file."""
    if peer is LIST:
        add_all(draft, "datasets", draft.path, draft.file)
        return
    for name, entry in draft.file.items():
        if str(name).startswith("_"):
            continue
        if peer is META:
            add_entry(draft, draft.path, str(name), entry)
            continue
        if not is_of_internvl(entry):
            draft.lose(str(name), entry, "it has no root and annotation, as InternVL's have")
            continue
        for key in entry.keys() - set(_OF_INTERNVL):
            draft.lose(f"{name}.{key}", entry[key], "a recipe has no word for it")
        known = {key: value for key, value in entry.items() if key in _OF_INTERNVL}
        add_all(draft, str(name), draft.path, {str(name): known})
