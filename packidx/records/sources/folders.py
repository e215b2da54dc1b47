"""Data files below a folder, those that Hugging Face's `datasets` has saved among them.

A folder has much that is not data (media, a README, indexes of tars, descriptions): that is passed
over. What is packed or compressed, or is a table of another kind, may be half of a corpus, and so
may what lies behind a link: these are warned of, so that none is missed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from packidx.errors import SourceError
from packidx.format.manifest import Layout
from packidx.format.schema import LENGTHS_FORMAT
from packidx.io import storage, urls
from packidx.io.own_files import read_json_object
from packidx.io.storage import unreadable
from packidx.records.containers.registry import JSON, SUFFIXES, ending_of, kind_of, required_kind
from packidx.records.media.paths import is_inside, reach, refuse_outside
from packidx.records.shards import InputFile
from packidx.records.sources import energon

_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version
_STATE = "state.json"  # in every folder of a data set that `datasets` saved
_SPLITS = "dataset_dict.json"  # in a folder of several, which lists their names
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


class _File(NamedTuple):
    """A data file of a folder."""

    order: str
    """What to sort by."""
    name: str
    """Its path below the folder."""
    source: str
    is_listed: bool = False
    """True for a tar that Energon's description lists."""


def in_folder(
    arg: str,
    path: str,
    layout: Layout,
    warnings: list[str],
    splits: Sequence[str] | None = None,
) -> list[InputFile]:
    """The data files of a folder; of one that Energon has prepared, those of its train split.

    Args:
        warnings: gets a warning of files that look like data and are not read.
        splits: of Energon's, in place of `energon.TRAIN`.

    Raises:
        SourceError: there is no such split, a description in it cannot be understood, `datasets`
            would put its files into different splits, or all files are of forms that are not read.
    """
    beside: list[tuple[str, str]] = []
    found = sorted(_files_below(path, splits, beside))
    if splits and not any(file.is_listed for file in found):
        raise SourceError(f"{arg} has no split {splits[0]!r}: name its files, or a folder in it")
    _refuse_several_splits(arg, [file.name for file in found if not file.is_listed])
    files: list[InputFile] = []
    for file in found:
        inner = os.path.join(path, file.name)
        if inner.endswith(JSON) and kind_of(inner) is None:
            continue  # a mix or a configuration beside the data
        uri = os.path.join(arg, file.name)
        files.append(InputFile(uri, inner, file.source, required_kind(uri, inner), layout))
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


def _files_below(
    folder: str, splits: Sequence[str] | None, beside: list[tuple[str, str]]
) -> Iterator[_File]:
    """Every data file; `beside` gets why others that look like data are not read."""
    top = os.path.basename(urls.absolute(folder)) or "data"
    for here, folders, files in walked(folder, beside):
        below = _below(here, folder)
        is_output = "snapshots" in folders and "windows" in folders
        if "manifest.json" in files:
            stated = read_json_object(urls.join(here, "manifest.json"))
            is_output = stated.get("format") == LENGTHS_FORMAT
        if is_output:  # a lengths table or an index, which lie beside data, not in it
            folders.clear()
        elif energon.FOLDER in folders:
            folders.clear()
            for place, split in enumerate((splits if not below else None) or (None,)):
                yield from _prepared(here, below, split, below or top, place, beside)
        elif _STATE in files:
            folders.clear()
            for name in _saved_files(here):
                refuse_outside(os.path.join(here, name), folder)
                path = os.path.join(below, name)
                yield _File(path, path, below or top)
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in files:
                path = os.path.join(below, name)
                if name.startswith(".") or name == _SPLITS:
                    continue
                if name.endswith(SUFFIXES):
                    yield _File(path, path, source_name(path, top))
                elif name.lower().endswith(_DATA):  # .JSONL is not read either
                    beside.append((_FORM, path))


def _prepared(
    here: str, below: str, split: str | None, source: str, place: int, beside: list[tuple[str, str]]
) -> Iterator[_File]:
    """The tars of a split of a folder that Energon has prepared: one source, in its order."""
    tars = []
    for inner, folders, files in walked(here):
        folders[:] = [name for name in folders if not name.startswith(".")]
        tars += [os.path.join(_below(inner, here), name) for name in files if name.endswith(".tar")]
    names, astray = energon.listed(here, split, tars)
    source = source if split in (None, energon.TRAIN) else f"{source}/{split}"
    beside += [(energon.NOWHERE, os.path.join(below, tar)) for tar in astray]
    for number, tar in enumerate(names):
        refuse_outside(os.path.join(here, tar), here)
        order = os.path.join(below, f"{place:03d}-{number:09d}")
        yield _File(order, os.path.join(below, tar), source, is_listed=True)


def walked(
    folder: str, beside: list[tuple[str, str]] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """`storage.walk`, into each folder once, though a symbolic link may lead back up; what leads
    out of `folder` by a link is added to `beside`, and nothing else is done with it."""
    seen = set()
    for here, folders, files in storage.walk(folder):
        if not urls.is_url(here):
            real = os.path.realpath(here)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            for name in [entry.name for entry in os.scandir(here) if entry.is_symlink()]:
                path = os.path.join(here, name)
                is_ours = name == energon.FOLDER  # whose files are refused one by one
                if not is_ours and not is_inside(os.path.realpath(path), reach(folder)):
                    (folders if name in folders else files).remove(name)
                    if beside is not None:
                        beside.append((_OUTSIDE, _below(path, folder)))
        yield here, folders, files


def _below(path: str, folder: str) -> str:
    """`path` as seen from `folder`; empty for that itself."""
    if urls.is_url(folder):
        return path.removeprefix(folder.rstrip("/")).strip("/")
    below = os.path.relpath(path, folder)
    return "" if below == "." else below


def source_name(name: str, parent: str) -> str:
    """`name` without suffix and shard number; `parent` where nothing is left of it."""
    folder, base = os.path.split(name)
    stem = _SHARD_NUMBER.sub("", base.removesuffix(ending_of(base)))
    return os.path.join(folder, stem) if stem else (folder or parent)


def _refuse_several_splits(arg: str, paths: Sequence[str]) -> None:
    """Raise a SourceError if `datasets` would put files of a folder into different splits."""
    globs: dict[str, str] = {}
    for path in sorted(paths):
        ending = ending_of(path)
        if (match := _SPLIT.search(path.removesuffix(ending))) is not None:
            word, rest = path[: match.end()], path[match.end() :]
            folder = word + rest[: rest.find("/")]
            glob = folder if "/" in rest else f"{word}*{ending}"
            globs.setdefault(str(match.lastgroup), os.path.join(arg, glob))
    if len(globs) > 1:
        named = ", ".join(f"{split}: {shlex.quote(glob)}" for split, glob in sorted(globs.items()))
        raise SourceError(f"{arg} has files of several splits: name those to read ({named})")


def _saved_files(folder: str) -> list[str]:
    """The Arrow files of a folder that `datasets` saved, as its ``state.json`` lists them.

    Raises:
        SourceError: it cannot be understood, or holds a selection.
    """
    path = urls.join(folder, _STATE)
    try:
        state = json.loads(storage.read(path))
        names = [os.fspath(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise SourceError(f"{folder} is a selection: run flatten_indices() and save it again")
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            f"{path} is not what `datasets` writes: save the data set again"
        ) from None
    for name in names:
        if os.path.basename(name) != name:
            raise SourceError(f"{path} lists {name!r}, which is not a file of its folder")
    return names
