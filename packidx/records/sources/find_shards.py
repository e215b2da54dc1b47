"""From arguments to shards: files, globs, folders, saved data sets and mixes."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Sequence

from msgspec.structs import replace

from packidx.errors import SourceError
from packidx.format.manifest import DEFAULT, Layout
from packidx.io import cache, storage, urls
from packidx.io.storage import unreadable
from packidx.records.containers.registry import KNOWN, container, required_kind
from packidx.records.media.paths import refuse_outside
from packidx.records.shards import InputFile
from packidx.records.sources import hub, mixes
from packidx.records.sources.folders import in_folder, source_name
from packidx.records.sources.mixes import DataSet

Source = str | os.PathLike[str] | DataSet
"""A file, folder, glob, URL or mix; or a data set that a recipe names."""
_NAMED = re.compile(r"([^=/]+)=(.+)", re.DOTALL)


def find_shards(
    args: Sequence[Source] | Source, layout: Layout = DEFAULT, warnings: list[str] | None = None
) -> list[InputFile]:
    """The shards that files, globs, folders, mixes and ``NAME=`` any of these stand for, in order.

    All may be URLs of an object store. What is not there, and is written as a data set of the Hub
    (``org/name@revision:config#split``), is looked for there. A source's name is the one stated,
    else the file's stem without a trailing shard number (``train-00003-of-00010`` → ``train``), and
    for a folder the path below it. ``mix.json#a,b`` takes two data sets of a mix, and
    ``folder#val,test`` two splits of Energon's. Hidden files, and what lies elsewhere, links
    resolved, are not read.

    Args:
        args: of a data set, its own name and layout hold, as they do in a mix.
        layout: what the options state. In a mix it holds for what a data set does not state itself.
        warnings: gets warnings of files that look like data and are not read.

    Raises:
        OptionError, SourceError: an option, a file, a mix or a URL cannot be, or nothing is found.
    """
    cache.forget()
    warnings = [] if warnings is None else warnings
    if isinstance(args, str | os.PathLike | DataSet):
        args = [args]
    shards: list[InputFile] = []
    for arg in args:
        try:
            if isinstance(arg, DataSet):
                found = _of_data_sets(f"source {arg.name!r}", [arg], layout, warnings)
            else:
                found = _named(os.fspath(arg), layout, warnings)
        except OSError as error:  # of a store: files of this machine are looked for quietly
            place = arg.locations[0] if isinstance(arg, DataSet) else os.fspath(arg)
            raise unreadable(error.filename or place, error) from error
        storage.overlapped(_check, found)
        shards += found
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


def _named(arg: str, layout: Layout, warnings: list[str]) -> list[InputFile]:
    """The shards of an argument, which may begin with a name for their source."""
    if shards := _find(arg, layout, warnings):
        return shards
    if named := _NAMED.fullmatch(arg):
        arg = named[2]
        if shards := _find(arg, layout, warnings):
            return [dataclasses.replace(shard, source=named[1]) for shard in shards]
    missing = "no such file"
    if storage.is_folder(_strip_scheme(arg)):
        missing = "no data file in it (images need a metadata.jsonl beside them, docs/data.md)"
    elif urls.is_url(arg):
        missing = "no such file or folder, or its bucket may not be listed"
    raise SourceError(f"{arg}: {missing}; a source is a file ({KNOWN}), a mix, a glob or a folder")


def _find(arg: str, layout: Layout, warnings: list[str], in_mix: bool = False) -> list[InputFile]:
    """The shards of what lies somewhere, or else of a data set of the Hub that has that name."""
    path = _strip_scheme(arg)
    name = hub.named(path)
    is_of_hub = name is not None and urls.is_url(path)
    shards = [] if is_of_hub else _find_at(arg, path, layout, warnings, in_mix)
    if shards or name is None or os.path.lexists(path):
        return shards
    if not is_of_hub and os.path.isdir(os.path.dirname(path)):
        return []  # a path of this machine
    folder, places = hub.downloaded(arg, name)
    for source, place in places:
        found = _find_at(place, place, layout, warnings, in_mix)
        for shard in found:
            refuse_outside(shard.path, folder)
        shards += [dataclasses.replace(shard, source=source or shard.source) for shard in found]
    if not places:
        try:
            shards = in_folder(folder, folder, layout, warnings, name.splits or None)
        except SourceError as error:
            url = f"{hub.SCHEME}{name.repo}@{os.path.basename(folder)}"
            raise SourceError(str(error).replace(folder, url)) from None
    if not shards:
        raise SourceError(f"{arg} has no data file: known endings are {KNOWN}")
    return shards


def _find_at(
    arg: str, path: str, layout: Layout, warnings: list[str], in_mix: bool = False
) -> list[InputFile]:
    """The shards of a folder, a file, a part of one of these (``#``), or of all that match."""
    if storage.is_folder(path):
        return in_folder(arg, path, layout, warnings)
    file, hash_, names = path.rpartition("#")
    wanted = [name.strip() for name in names.split(",")] if hash_ else []
    if storage.is_file(path) or os.path.lexists(path):
        files, wanted = [path], []
    elif hash_ and storage.is_folder(file):
        return in_folder(arg[: len(arg) - len(names) - 1], file, layout, warnings, wanted)
    elif hash_ and storage.is_file(file):
        files = [file]
    else:
        files, wanted = storage.glob(path), []
    prefix = "" if urls.is_url(path) else arg[: len(arg) - len(path)]
    shards: list[InputFile] = []
    for name in files:
        if (mix := mixes.mix_in_file(name)) is None:
            if wanted:
                return []
            parent = os.path.basename(os.path.dirname(urls.absolute(name))) or "data"
            source, uri = source_name(os.path.basename(name), parent), prefix + name
            shards.append(InputFile(uri, name, source, required_kind(uri, name), layout))
        elif in_mix:
            raise SourceError(f"{name} is a mix itself: name its data sets in the mix that has it")
        else:
            shards += _of_data_sets(name, mixes.data_sets(name, mix, wanted), layout, warnings)
    return shards


def _of_data_sets(
    path: str, given: Sequence[DataSet], layout: Layout, warnings: list[str]
) -> list[InputFile]:
    """The shards of data sets, in order.

    Args:
        path: of the mix that names them, for errors.
        layout: holds for what a data set does not state itself.
    """
    shards = []
    for data_set in given:
        own, names = data_set.layout, ("columns", "tags", "delimiter", "pair", "ignore", "answers")
        own = replace(own, **{n: getattr(layout, n) for n in names if not getattr(own, n)})
        for location in data_set.locations:
            found = _find(location, own, warnings, in_mix=True)
            if not found:
                raise SourceError(f"{path}: {location} is not there, or has no data file in it")
            shards += [dataclasses.replace(shard, source=data_set.name) for shard in found]
    return shards


def _check(shard: InputFile) -> None:
    try:
        if urls.is_url(shard.path):
            cache.remembered_stat(shard.path)  # it is there
        elif not stat.S_ISREG(os.stat(shard.path).st_mode):
            raise SourceError(f"{shard.uri} is not a regular file: write its records to one")
    except OSError as error:
        raise unreadable(shard.uri, error) from None
    container(shard.container, shard.layout.delimiter)


def _strip_scheme(arg: str) -> str:
    """The path of a ``file://`` URL; of any other one, its one spelling."""
    urls.refuse_password(arg)
    return urls.absolute(arg) if urls.is_url(arg) else urls.local_path(arg)
