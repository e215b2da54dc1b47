"""Data files below a folder."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from packidx.io import urls
from packidx.records.containers.registry import SUFFIXES, strip_suffix
from packidx.records.containers.tar.container import TAR, refuse_compressed
from packidx.records.layout import Layout
from packidx.records.shards import Shard
from packidx.records.sources import energon, hf_datasets, unread
from packidx.records.sources.kinds import JSON, is_small, known_kind, mix_in_file, required_kind

_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version


def in_folder(arg: str, path: str, layout: Layout) -> list[Shard]:
    if energon.is_prepared(path):
        return prepared_shards(arg, path, layout)
    top = os.path.basename(urls.absolute(path)) or "data"
    shards: list[Shard] = []
    beside: list[str] = []
    for _, name, source, prepared in sorted(_files_below(path, top, beside)):
        inner = os.path.join(path, name)
        uri = os.path.join(arg, name)
        if inner.endswith(JSON):
            mix = inner.endswith(".json") and is_small(inner) and mix_in_file(inner) is not None
            if mix or known_kind(inner) is None:
                continue  # a mix or a configuration beside the data
        kind = required_kind(uri, inner)
        shards.append(Shard(uri, inner, source, kind, layout, prepared or None))
    if shards and beside:
        shards[0] = dataclasses.replace(shards[0], folder=arg, beside=tuple(sorted(beside)))
    return shards


def prepared_shards(arg: str, path: str, layout: Layout, split: str | None = None) -> list[Shard]:
    """The tars of a split of a folder that Energon has prepared: one source, in its order."""
    name = os.path.basename(urls.absolute(path)) or "data"
    source = name if split in (None, energon.TRAIN) else f"{name}/{split}"
    return [
        Shard(os.path.join(arg, tar), os.path.join(path, tar), source, TAR, layout, path)
        for tar in energon.shard_names(path, split)
    ]


def refuse_compressed_in(arg: str, folder: str) -> None:
    """Say why a folder of compressed tars alone has no data file."""
    for here, _, files in energon.walk_once(folder):
        for name in sorted(files):
            refuse_compressed(os.path.join(arg, _below(here, folder), name))


def _below(path: str, folder: str) -> str:
    """`path` as seen from `folder`; empty for that itself."""
    if urls.is_url(folder):
        return path.removeprefix(folder.rstrip("/")).strip("/")
    below = os.path.relpath(path, folder)
    return "" if below == "." else below


def source_name(name: str, parent: str) -> str:
    """`name` without suffix and shard number; `parent` where nothing is left of it."""
    folder, base = os.path.split(name)
    stem = _SHARD_NUMBER.sub("", strip_suffix(base))
    return os.path.join(folder, stem) if stem else (folder or parent)


def _files_below(folder: str, top: str, beside: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """(what to sort by, path below `folder`, source, the prepared folder that lists it or nothing)
    of every data file; `beside` is given the paths of those that look like data."""
    for here, folders, files in energon.walk_once(folder):
        prepared = energon.FOLDER in folders
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = _below(here, folder)
        if prepared:
            folders.clear()
            for number, name in enumerate(energon.shard_names(here)):
                yield os.path.join(below, f"{number:09d}"), os.path.join(below, name), below, here
            continue
        if hf_datasets.STATE in files:
            folders.clear()
            for name in hf_datasets.file_names(here):
                path = os.path.join(below, name)
                yield path, path, below or top, ""
            continue
        for name in files:
            if name.startswith(".") or name == hf_datasets.SPLITS:
                continue
            if name.endswith(SUFFIXES):
                path = os.path.join(below, name)
                yield path, path, source_name(path, top), ""
            elif unread.looks_like_data(name):
                beside.append(os.path.join(below, name))
