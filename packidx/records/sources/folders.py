"""Data files below a folder, those that Hugging Face's `datasets` has saved among them.

A folder has much that is no data (media, a README, indexes of tars, descriptions): that is passed
over. What is packed or compressed, or is a table of another kind, may be half of a corpus: it is
told, so that none is missed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.io.storage import unreadable
from packidx.records.containers.registry import JSON, SUFFIXES, kind_of, required_kind, strip_suffix
from packidx.records.containers.tar.container import COMPRESSED, TAR, refuse_compressed
from packidx.records.dialects.webdataset import kind_of_name
from packidx.records.layout import Layout
from packidx.records.shards import Shard
from packidx.records.sources import energon
from packidx.records.sources.mixes import mix_in_file

_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version
_STATE = "state.json"  # in every folder of a data set that `datasets` saved
_SPLITS = "dataset_dict.json"  # in a folder of several
_ARCHIVES = (*COMPRESSED, ".tbz", ".zip", ".7z", ".rar")
_CODECS = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".br", ".sz", ".snappy", ".z")
_TABLES = (".tfrecord", ".tfrecords", ".mds", ".avro", ".orc", ".feather", ".msgpack", ".xlsx")
_DATA = (*_ARCHIVES, *_CODECS, *_TABLES, *SUFFIXES)
_MEDIA = (".nii.gz", ".svg.gz")  # compressed as a rule


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
            mix = inner.endswith(".json") and mix_in_file(inner) is not None
            if mix or kind_of(inner) is None:
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


def refuse_media_alone(arg: str, folder: str) -> None:
    """Say what a folder of images, as those of classes, lacks; it has no data file.

    Raises:
        SourceError: it has images, videos or sounds.
    """
    for here, _, files in energon.walk_once(folder):
        medium = next((name for name in sorted(files) if kind_of_name(name) is not None), None)
        if medium is not None:
            shown = os.path.join(_below(here, folder), medium)
            raise SourceError(
                f"{arg} has media ({shown}) and nothing that says what is trained on: put a "
                "metadata.csv, metadata.jsonl or metadata.parquet beside them, with the columns "
                "file_name and text (or question and answer); a folder's name is taken for no label"
            )


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
        if _STATE in files:
            folders.clear()
            for name in _saved_files(here):
                path = os.path.join(below, name)
                yield path, path, below or top, ""
            continue
        for name in files:
            if name.startswith(".") or name == _SPLITS:
                continue
            if name.endswith(SUFFIXES):
                path = os.path.join(below, name)
                yield path, path, source_name(path, top), ""
            elif _looks_like_data(name):
                beside.append(os.path.join(below, name))


def _saved_files(folder: str) -> list[str]:
    """The Arrow files of a folder that `datasets` saved, as its ``state.json`` lists them.

    Raises:
        SourceError: it cannot be understood, or holds a selection.
    """
    path = urls.join(folder, _STATE)
    try:
        state = json.loads(storage.read(path))
        names = [entry["filename"] for entry in state["_data_files"]]
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            f"{path} is not what `datasets` writes: save the data set again"
        ) from None
    if state.get("_indices_data_files"):
        raise SourceError(f"{folder} holds a selection: run flatten_indices() and save it again")
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise SourceError(f"{path} lists {name!r}, which is no file of its folder")
    return names


def _looks_like_data(name: str) -> bool:
    """Whether a file that is not read may hold records, by its name."""
    lower = name.lower()  # .JSONL and .TAR are not read either
    return lower.endswith(_DATA) and not lower.endswith(_MEDIA)


def unread(folder: str, names: Sequence[str]) -> energon.NotRead:
    """What is said of files below a folder that look like data and are not read; at least one."""
    several = len(names) > 1
    files = f"{len(names):,} file{'s' if several else ''} of {folder}"
    is_, them = ("are", "them") if several else ("is", "it")
    examples = energon.some(names)
    return energon.NotRead(
        (f"{files} {is_} in a form that packidx does not read",),
        (
            f"{files} look{'' if several else 's'} like data and {is_} not read: {examples}; "
            f"unpack {them} to a form that packidx reads, or move {them} out of the folder",
        ),
    )
