"""Data files below a folder: shards, what `datasets` has saved, and what Energon has prepared.

A folder has much that is not data (media, a README, indexes of tars, descriptions): that is passed
over. What is packed or compressed, or is a table of another kind, may be half of a corpus, and so
may what lies behind a link: these are warned of, so that none is missed.

Of Energon, ``.nv-meta/.info.json`` (before Energon 7 ``.info.yaml``) lists the shards, and
``split.yaml`` (or ``split.json``) says which split has which, with brace ranges, and leaves some
out (`WebdatasetInfo` and `WebdatasetSplits` in its flavors/webdataset/structs.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import braceexpand

from packidx.errors import SourceError
from packidx.format.manifest import Layout
from packidx.format.schema import LENGTHS_FORMAT
from packidx.io import storage, urls
from packidx.io.option_files import load_document
from packidx.io.output_folder import read_json_object
from packidx.io.storage import unreadable_error
from packidx.records.containers.registry import JSON, SUFFIXES, ending_of, kind_of, required_kind
from packidx.records.media.paths import find_reach, is_inside, refuse_outside
from packidx.records.shards import InputFile

ENERGON = ".nv-meta"
"""Folder of Energon's descriptions."""
_TRAIN = "train"  # the split that is meant where none is named
_AGAIN = "run `energon prepare` again"
_STATE = "state.json"  # in every folder of a data set that `datasets` saved
_SPLITS = "dataset_dict.json"  # in a folder of several, which lists their names
_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version
_DATA = (
    *(*SUFFIXES, ".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".rar"),
    *(".tgz", ".tzst", ".txz", ".tbz2", ".tbz"),
    *(".tfrecord", ".tfrecords", ".mds", ".avro", ".orc", ".feather", ".msgpack", ".xlsx"),
)
_FORM = "in a form that packidx does not read (unpack them, or move them out of the folder)"
_OUTSIDE = "behind a link out of it (name them as a source, or by a glob, if they belong to it)"
_NAMED = 3  # files that a sentence names before it counts
_SPLIT = re.compile(
    r"(?<![a-z])(?:(?P<train>train|training)|(?P<validation>validation|valid|val|dev)"
    r"|(?P<test>test|testing|eval|evaluation))(?![a-z])",
    re.IGNORECASE,
)
"""Words of a path by which `datasets` tells splits apart (``SPLIT_KEYWORDS`` of its data_files)."""

Beside = list[tuple[str, str]]
"""Reason for files that look like data and are not read, and their paths below the folder."""


def in_folder(
    arg: str, path: str, layout: Layout, warnings: list[str], splits: Sequence[str] | None = None
) -> list[InputFile]:
    """The data files of a folder; of one that Energon has prepared, those of its train split.

    Args:
        warnings: gets a warning of files that look like data and are not read.
        splits: of Energon's, in place of the train split.

    Raises:
        SourceError: there is no such split, a description in it cannot be understood, `datasets`
            would put its files into different splits, or all files are of forms that are not read.
    """
    beside: Beside = []
    found = sorted(_files_below(path, splits, beside))
    if splits and not any(is_listed for *_, is_listed in found):
        raise SourceError(f"{arg} has no split {splits[0]!r}: name its files, or a folder in it")
    globs: dict[str, str] = {}
    for name in sorted(name for _, name, _, is_listed in found if not is_listed):
        ending = ending_of(name)
        if (match := _SPLIT.search(name.removesuffix(ending))) is not None:
            word, rest = name[: match.end()], name[match.end() :]
            glob = word + rest[: rest.find("/")] if "/" in rest else f"{word}*{ending}"
            globs.setdefault(str(match.lastgroup), shlex.quote(os.path.join(arg, glob)))
    if len(globs) > 1:
        named = ", ".join(f"{split}: {glob}" for split, glob in sorted(globs.items()))
        raise SourceError(f"{arg} has files of several splits: name those to read ({named})")
    files: list[InputFile] = []
    for _, name, source, _ in found:
        uri, inner = os.path.join(arg, name), os.path.join(path, name)
        if not inner.endswith(JSON) or kind_of(inner) is not None:  # no mix, no configuration
            files.append(InputFile(uri, inner, source, required_kind(uri, inner), layout))
    unread = []
    for reason in dict.fromkeys(why for why, _ in beside):
        names = sorted(name for why, name in beside if why == reason)
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        listed = ", ".join(map(repr, names[:_NAMED])) + more
        unread.append(f"{len(names):,} file(s) of {arg} not read, {reason}: {listed}")
    if unread and not files:
        raise SourceError(unread[0])
    warnings += [text for text in unread if text not in warnings]
    return files


def source_name(name: str, parent: str) -> str:
    """`name` without suffix and shard number; `parent` where nothing is left of it."""
    folder, base = os.path.split(name)
    stem = _SHARD_NUMBER.sub("", base.removesuffix(ending_of(base)))
    return os.path.join(folder, stem) if stem else (folder or parent)


def _files_below(
    folder: str, splits: Sequence[str] | None, beside: Beside
) -> Iterator[tuple[str, str, str, bool]]:
    """Every data file: what to sort by, path below the folder, source, and True for a tar that
    Energon lists; `beside` gets why others that look like data are not read."""
    top = os.path.basename(urls.to_absolute(folder)) or "data"
    seen = set[str]()  # folders, which a link may lead back to
    for here, folders, files in storage.walk(folder):
        below = _relative_to(here, folder)
        real = here if urls.is_url(here) else os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        entries = () if urls.is_url(here) else os.scandir(here)
        for entry in [each for each in entries if each.is_symlink() and each.name != ENERGON]:
            if not is_inside(os.path.realpath(entry.path), find_reach(folder)):
                (folders if entry.name in folders else files).remove(entry.name)
                beside.append((_OUTSIDE, os.path.join(below, entry.name)))
        is_output = "snapshots" in folders and "windows" in folders
        if "manifest.json" in files:
            stated = read_json_object(urls.join_path(here, "manifest.json"))
            is_output = stated.get("format") == LENGTHS_FORMAT
        if is_output:  # a lengths table or an index, which lie beside data, not in it
            folders.clear()
        elif ENERGON in folders:
            folders.clear()
            for place, split in enumerate((splits if not below else None) or (_TRAIN,)):
                source = (below or top) + (f"/{split}" if split != _TRAIN else "")
                for number, tar in enumerate(_list_prepared(here, split)):
                    order = os.path.join(below, f"{place:03d}-{number:09d}")
                    yield order, os.path.join(below, tar), source, True
        elif _STATE in files:
            folders.clear()
            for path in (os.path.join(below, name) for name in _list_saved(here)):
                yield path, path, below or top, False
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in files:
                path = os.path.join(below, name)
                if name.startswith(".") or name == _SPLITS:
                    continue
                if name.endswith(SUFFIXES):
                    yield path, path, source_name(path, top), False
                elif name.lower().endswith(_DATA):  # .JSONL is not read either
                    beside.append((_FORM, path))


def _relative_to(path: str, folder: str) -> str:
    """`path` as seen from `folder`; empty for that itself."""
    if urls.is_url(folder):
        return path.removeprefix(folder.rstrip("/")).strip("/")
    below = os.path.relpath(path, folder)
    return "" if below == "." else below


def _check_listed(listing: str, folder: str, names: Sequence[str]) -> list[str]:
    """Return names of files that a listing has. Raise a SourceError if one is not in its folder."""
    for name in names:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(f"{listing} lists {name!r}, which is not a file of its folder")
        refuse_outside(os.path.join(folder, name), folder)
    return [*names]


def _list_saved(folder: str) -> list[str]:
    """The Arrow files of a folder that `datasets` saved, as its ``state.json`` lists them."""
    path = urls.join_path(folder, _STATE)
    try:
        state = json.loads(storage.read(path))
        names = [os.fspath(entry["filename"]) for entry in state["_data_files"]]
        is_selection = bool(state.get("_indices_data_files"))
    except OSError as error:
        raise unreadable_error(path, error) from None
    except (ValueError, KeyError, TypeError):
        raise SourceError(f"{path} is not what `datasets` writes: save it again") from None
    if is_selection:
        raise SourceError(f"{folder} is a selection: run flatten_indices() and save it again")
    return _check_listed(path, folder, names)


def _list_prepared(folder: str, split: str) -> list[str]:
    """The tars of a split of Energon's, in the order in which the info lists them, as paths below
    the folder. Raise a SourceError if the description cannot be read or understood, has no such
    split, names shards that it does not list, or leaves single samples out."""
    info, value = _read_description(folder, (".info.json", ".info.yaml"))
    every = value.get("shard_counts") if isinstance(value, dict) else None
    if not isinstance(every, dict):
        raise SourceError(f"{info} has no shard_counts: run `energon prepare`, or name the tars")
    names = _check_listed(info, folder, [*map(str, every)])
    path, stated = _read_description(folder, ("split.yaml", "split.json"))
    if stated is None and split == _TRAIN:
        return names
    shards = stated.get("split_parts") if isinstance(stated, dict) else None
    if not isinstance(shards, dict):
        raise SourceError(f"{path} has no split_parts: {_AGAIN}")
    if split not in shards:
        known = ", ".join(map(str, shards)) or "none"
        raise SourceError(f"{folder} has no split {split!r}, there are: {known}; name FOLDER#SPLIT")
    try:
        taken, excluded = (
            {name for each in patterns or () for name in braceexpand.braceexpand(each)}
            for patterns in (shards[split], stated.get("exclude"))
        )
    except (TypeError, ValueError) as error:
        raise SourceError(f"{path} has {stated!r:.100} as shards: {error}; {_AGAIN}") from None
    if single := next((name for name in excluded if ".tar/" in name), None):
        cure = "take such entries out of a copy of .nv-meta, and give `packidx plan --exclude`"
        raise SourceError(f"{path} excludes single samples ({single!r}): {cure}")
    text = f"the {split} split of {folder} has"
    if unknown := sorted(taken.difference(excluded, names)):
        raise SourceError(f"{text} {unknown[0]!r}, which {info} does not list: {_AGAIN}")
    if taken <= excluded:
        raise SourceError(f"{text} no shard that is not excluded: check {path}")
    return [name for name in names if name in taken - excluded]


def _read_description(folder: str, names: tuple[str, ...]) -> tuple[str, Any]:
    """The path and content of the first of Energon's files that is there, or of none."""
    path = ""
    for name in names:
        path = urls.join_path(urls.join_path(folder, ENERGON), name)
        try:
            refuse_outside(path, folder)
            return path, load_document(name, storage.read(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable_error(path, error) from None
        except ValueError as error:
            raise SourceError(f"{path} cannot be understood ({error}): write it again") from None
    return path, None
