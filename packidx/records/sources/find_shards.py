"""From arguments to shards: files, globs, folders, saved data sets and mixes."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import SourceError
from packidx.io import cache, storage, urls
from packidx.io.storage import unreadable
from packidx.records.containers import DEFAULT as JSONL
from packidx.records.containers import SUFFIXES, container, kind_of, strip_suffix
from packidx.records.containers.tar.container import TAR, refuse_compressed
from packidx.records.layout import DEFAULT, Layout
from packidx.records.local_shards import local_shard
from packidx.records.sources import energon, hf_datasets, mixes, unread

_NAMED = re.compile(r"([^=/]+)=(.+)", re.DOTALL)
_SHARD_NUMBER = re.compile(r"(^|[-_.])(\d+[-_]of[-_]\d+|0\d+|\d{5,})$")  # no year, no version
_KNOWN = ", ".join(SUFFIXES)
_JSON = (".json", ".json.gz", ".json.zst")
"""Endings of files that must be looked into to know what they are."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One input file."""

    uri: str
    """As given."""
    path: str
    """Where it is on this machine, or its URL."""
    source: str
    """Name of the source it belongs to."""
    container: str = JSONL
    """What kind of file it is."""
    layout: Layout = DEFAULT
    """How its source names things."""
    prepared: str | None = None
    """The folder that Energon has prepared and that lists it."""
    folder: str = ""
    """The folder source whose first shard it is, as given; empty of all others."""
    beside: tuple[str, ...] = ()
    """Files below `folder` that look like data and are not read."""


def expand_sources(args: Sequence[str], layout: Layout = DEFAULT) -> list[Shard]:
    """The shards that files, globs, folders, mixes and ``NAME=`` any of these stand for, in order.

    All of these may be URLs of an object store.

    A source's name is the one stated (by the argument, or in a mix), else the file's stem without a
    trailing shard number (``train-00003-of-00010`` → ``train``); for a folder, the path below it
    (``sub/train``), and for one that `datasets` saved, the folder's. A mix is a ``.yaml`` file, or
    a ``.json`` file that holds one; ``mix.json#a,b`` takes two of its data sets. Mixes are not
    looked for in folders, nor are files and folders whose names begin with a dot. Of a folder that
    Energon has prepared, the train split is taken, or the ``folder#val,test`` that are named.

    Args:
        args: what was given.
        layout: what the options state. In a mix it holds for what a data set does not state itself.

    Raises:
        OptionError: `layout` and a mix both state columns, tags or a delimiter of a data set.
        SourceError: nothing found, a file of an unknown kind, a file named twice, a mix that cannot
            be understood, a URL of a scheme that nobody knows or with a password in it, or a store
            that does not answer.
    """
    cache.forget()
    if isinstance(args, str):
        args = [args]
    shards = [shard for arg in args for shard in _expanded(os.fspath(arg), layout)]
    if not shards:
        raise SourceError("no source given: name a file of records, a mix, a glob or a folder")
    seen: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    for shard in shards:
        path = shard.path
        real = urls.absolute(path) if urls.is_url(path) else os.path.realpath(path)
        if real in seen:
            raise SourceError(f"{shard.uri} is the same file as {seen[real]}: name it only once")
        seen[real] = shard.uri
        if layouts.setdefault(shard.source, shard.layout) != shard.layout:
            raise SourceError(
                f"two sources of different layout are both named {shard.source!r}: give one of "
                "them another name, NAME=PATH or in the mix"
            )
    return shards


def not_read(shards: Sequence[Shard]) -> energon.NotRead:
    """What is in the sources' folders, looks like data, and is not among `shards`.

    Raises:
        SourceError: a folder that Energon has prepared cannot be read any more.
    """
    folders = dict.fromkeys(shard.prepared for shard in shards if shard.prepared is not None)
    paths = {urls.absolute(shard.path) for shard in shards} if folders else set()
    try:
        found = [energon.not_read(folder, paths) for folder in folders]
    except OSError as error:  # of a store
        raise unreadable(error.filename or next(iter(folders)), error) from error
    found += [unread.about(shard.folder, shard.beside) for shard in shards if shard.beside]
    return energon.NotRead(
        tuple(text for one in found for text in one.notes),
        tuple(text for one in found for text in one.warnings),
    )


def _expanded(arg: str, layout: Layout) -> list[Shard]:
    try:
        return _expand(arg, layout)
    except OSError as error:  # of a store: files of this machine are looked for quietly
        raise unreadable(error.filename or arg, error) from error


def _expand(arg: str, layout: Layout) -> list[Shard]:
    found = _find(arg, layout)
    name = None
    if not found and (named := _NAMED.fullmatch(arg)):
        name, arg = named[1], named[2]
        found = _find(arg, layout)
    if not found:
        folder = storage.is_folder(_strip_scheme(arg))
        if folder:
            _refuse_compressed_in(arg, _strip_scheme(arg))
        nothing = "no such file or folder, or its bucket may not be listed"
        missing = nothing if urls.is_url(arg) else "no such file"
        hint = "no data file in it" if folder else missing
        raise SourceError(
            f"{arg}: {hint}; a source is a file ({_KNOWN}), a mix, a glob or a folder"
        )
    cache.remember_stats(shard.path for shard in found if urls.is_url(shard.path))
    for shard in found:
        _check(shard)
    return [dataclasses.replace(shard, source=name or shard.source) for shard in found]


def _find(arg: str, layout: Layout) -> list[Shard]:
    path = _strip_scheme(arg)
    if storage.is_folder(path):
        return _in_folder(arg, path, layout)
    if storage.is_file(path) or os.path.lexists(path):
        return _single(arg, path, layout)
    file, hash_, names = path.rpartition("#")
    if hash_ and energon.is_prepared(file):
        splits = [name.strip() for name in names.split(",")]
        folder = arg[: len(arg) - len(names) - 1]
        return [shard for split in splits for shard in _prepared(folder, file, layout, split)]
    if hash_ and storage.is_file(file) and (mix := mixes.load_mix(file)) is not None:
        return _in_mix(file, mix, layout, tuple(name.strip() for name in names.split(",")))
    prefix = "" if urls.is_url(path) else arg[: len(arg) - len(path)]
    matches = storage.glob(path)
    return [shard for name in matches for shard in _single(prefix + name, name, layout)]


def _single(uri: str, path: str, layout: Layout, data_type: str | None = None) -> list[Shard]:
    """The shard that a file is, or the shards of the mix that it is."""
    if path.endswith((".json", *mixes.SUFFIXES)) and storage.is_file(path):
        mix = _mix(path) if path.endswith(mixes.SUFFIXES) or _is_small(path) else None
        if mix is not None:
            return _in_mix(path, mix, layout)
    parent = os.path.basename(os.path.dirname(urls.absolute(path))) or "data"
    name = _source_name(os.path.basename(path), parent)
    return [Shard(uri, path, name, _kind(uri, path, data_type), layout)]


def _is_small(path: str) -> bool:
    return storage.stat(path).nbytes <= 16 << 20


def _mix(path: str) -> Any:
    """The mix in a file, None where a ``.json`` file is none; that file is read again for its
    records, so a copy of it is kept."""
    with local_shard(path) as copy:
        return mixes.load_mix(copy)


def _kind(uri: str, path: str, data_type: str | None = None) -> str:
    if not urls.is_url(path) and not os.path.isfile(path):  # `_check` says what it is
        return JSONL
    refuse_compressed(uri)
    kind = _kind_of(path)
    if kind is not None or (kind := data_type) is not None:
        return kind
    if path.endswith(_JSON):
        raise SourceError(
            f"{uri} holds one object that is neither a record nor a mix: write an array of "
            "records, one record a line, or a mix of data sets with file_name"
        )
    raise SourceError(f"{uri} is of an unknown kind: known endings are {_KNOWN}, and .yaml, .yml")


def _kind_of(path: str) -> str | None:
    if not path.endswith(_JSON):
        return kind_of(path)
    with local_shard(path) as copy:
        return kind_of(copy)


def _in_mix(path: str, mix: Any, layout: Layout, wanted: Sequence[str] = ()) -> list[Shard]:
    """The shards of a mix's data sets, in its order."""
    data_sets = [
        dataclasses.replace(one, layout=one.layout.completed(layout, one.described(path)))
        for one in mixes.data_sets(path, mix, wanted)
    ]
    found = [_of_data_set(path, data_set) for data_set in data_sets]
    own = [data_set.name for data_set in data_sets if data_set.name is not None]
    stems = [
        None if d.name else shards[0].source for d, shards in zip(data_sets, found, strict=True)
    ]
    paths = short_names([strip_suffix(shards[0].path) for shards in found])
    for number, data_set in enumerate(data_sets):
        name = data_set.name
        if name is None and [*own, *stems].count(stems[number]) > 1:
            name = paths[number]  # of another folder than its namesakes
        if name is not None:
            found[number] = [dataclasses.replace(shard, source=name) for shard in found[number]]
    return [shard for shards in found for shard in shards]


def _of_data_set(path: str, data_set: mixes.DataSet) -> list[Shard]:
    """The shards of one data set, by the names that their files give them."""
    shards = []
    for place in data_set.places:
        inner = _strip_scheme(place)
        if storage.is_file(inner):
            found = _single(place, inner, data_set.layout, data_set.data_type)
            if any(shard.uri != place for shard in found):
                raise SourceError(f"{path}: {place} is a mix itself: name its data sets here")
        else:
            found = _find(place, data_set.layout)
        if not found:
            raise SourceError(f"{path}: {place} is not there, or has no data file in it")
        shards += found
    return shards


def _in_folder(arg: str, path: str, layout: Layout) -> list[Shard]:
    if energon.is_prepared(path):
        return _prepared(arg, path, layout)
    top = os.path.basename(urls.absolute(path)) or "data"
    shards: list[Shard] = []
    beside: list[str] = []
    for _, name, source, prepared in sorted(_files_below(path, top, beside)):
        inner = os.path.join(path, name)
        uri = os.path.join(arg, name)
        if inner.endswith(_JSON):
            mix = inner.endswith(".json") and _is_small(inner) and _mix(inner) is not None
            if mix or _kind_of(inner) is None:
                continue  # a mix or a configuration beside the data
        kind = _kind(uri, inner)
        shards.append(Shard(uri, inner, source, kind, layout, prepared or None))
    if shards and beside:
        shards[0] = dataclasses.replace(shards[0], folder=arg, beside=tuple(sorted(beside)))
    return shards


def _prepared(arg: str, path: str, layout: Layout, split: str | None = None) -> list[Shard]:
    """The tars of a split of a folder that Energon has prepared: one source, in its order."""
    name = os.path.basename(urls.absolute(path)) or "data"
    source = name if split in (None, energon.TRAIN) else f"{name}/{split}"
    return [
        Shard(os.path.join(arg, one), os.path.join(path, one), source, TAR, layout, path)
        for one in energon.shard_names(path, split)
    ]


def _refuse_compressed_in(arg: str, folder: str) -> None:
    """Say why a folder of compressed tars alone has no data file."""
    for here, _, files in storage.walk(folder):
        for name in sorted(files):
            refuse_compressed(os.path.join(arg, _below(here, folder), name))


def _below(path: str, folder: str) -> str:
    """`path` as seen from `folder`; empty for that itself."""
    if urls.is_url(folder):
        return path.removeprefix(folder.rstrip("/")).strip("/")
    below = os.path.relpath(path, folder)
    return "" if below == "." else below


def _source_name(name: str, parent: str) -> str:
    """`name` without suffix and shard number; `parent` where nothing is left of it."""
    folder, base = os.path.split(name)
    stem = _SHARD_NUMBER.sub("", strip_suffix(base))
    return os.path.join(folder, stem) if stem else (folder or parent)


def _files_below(folder: str, top: str, beside: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """(what to sort by, path below `folder`, source, the prepared folder that lists it or nothing)
    of every data file; `beside` is given the paths of those that look like data."""
    seen = set()
    for here, folders, files in storage.walk(folder):
        real = here if urls.is_url(here) else os.path.realpath(here)
        if real in seen:  # a symbolic link back up
            folders.clear()
            continue
        seen.add(real)
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
                yield path, path, _source_name(path, top), ""
            elif unread.looks_like_data(name):
                beside.append(os.path.join(below, name))


def _check(shard: Shard) -> None:
    try:
        shard.uri.encode()
        if urls.is_url(shard.path):
            cache.remembered_stat(shard.path)  # it is there
            mode = stat.S_IFREG
        else:
            mode = os.stat(shard.path).st_mode
    except UnicodeEncodeError:
        raise SourceError(f"the name of {shard.uri!r} is not UTF-8: rename the file") from None
    except OSError as error:
        raise unreadable(shard.uri, error) from None
    if not stat.S_ISREG(mode):
        raise SourceError(f"{shard.uri} is not a regular file: write its records to one")
    container(shard.container, shard.layout.delimiter)


def _strip_scheme(arg: str) -> str:
    """The path of a ``file://`` URL; of any other one, its one spelling."""
    urls.refuse_password(arg)
    return urls.absolute(arg) if urls.is_url(arg) else urls.local_path(arg)


def short_names(paths: Sequence[str]) -> list[str]:
    """For each path its shortest suffix, in whole components, that no other path ends with."""
    parts = [urls.absolute(path).split(os.sep) for path in paths]
    names = [""] * len(paths)
    open_ones = list(range(len(paths)))
    depth = 1
    while open_ones:
        for number in open_ones:
            names[number] = "/".join(parts[number][-depth:])
        count = collections.Counter(names[number] for number in open_ones)
        open_ones = [
            number
            for number in open_ones
            if count[names[number]] > 1 and depth < len(parts[number])
        ]
        depth += 1
    return names
