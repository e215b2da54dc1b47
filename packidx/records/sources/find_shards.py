"""Shards of arguments: files, globs, folders, saved data sets and mixes.

A mix is NeMo Automodel's and LLaMA-Factory's meta file, in JSON or YAML: an object of
``name: {file_name, columns, tags, media_dir, sample_ratio …}``.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import orjson
from msgspec.structs import replace

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import DEFAULT, Layout
from packidx.io import cache, storage, urls
from packidx.io.option_files import load_document, read_section
from packidx.io.storage import raise_unreadable, unreadable_error
from packidx.records.containers.registry import KNOWN, get_container, required_kind
from packidx.records.media.paths import refuse_outside
from packidx.records.shards import InputFile
from packidx.records.sources import hub
from packidx.records.sources.folders import in_folder, source_name


@dataclass(frozen=True)
class DataSet:
    """One data set that a mix or a recipe names."""

    name: str
    locations: tuple[str, ...]
    """Files, globs or folders, seen from the working directory."""
    layout: Layout


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
    cache.forget_stats()
    warnings = [] if warnings is None else warnings
    if isinstance(args, str | os.PathLike | DataSet):
        args = [args]
    shards: list[InputFile] = []
    for arg in args:
        try:
            if isinstance(arg, DataSet):
                found = _of_data_sets(f"source {arg.name!r}", [arg], layout, warnings)
            else:
                found = _find_named(os.fspath(arg), layout, warnings)
        except OSError as error:  # of a store: files of this machine are looked for quietly
            place = arg.locations[0] if isinstance(arg, DataSet) else os.fspath(arg)
            raise unreadable_error(error.filename or place, error) from error
        storage.map_overlapped(_check_shard, found)
        shards += found
    if not shards:
        raise SourceError("no source given: name a file of records, a mix, a glob or a folder")
    seen: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    for shard in shards:
        path = shard.path
        real = urls.to_absolute(path) if urls.is_url(path) else os.path.realpath(path)
        if real in seen:
            raise SourceError(f"{shard.uri} is the same file as {seen[real]}: name it only once")
        seen[real] = shard.uri
        if layouts.setdefault(shard.source, shard.layout) != shard.layout:
            text = f"two sources of different layout are both named {shard.source!r}"
            raise SourceError(f"{text}: give one another name, NAME=PATH or in the mix")
    return shards


def _find_named(arg: str, layout: Layout, warnings: list[str]) -> list[InputFile]:
    """The shards of an argument, which may begin with a name for their source."""
    if shards := _find_anywhere(arg, layout, warnings):
        return shards
    if named := _NAMED.fullmatch(arg):
        arg = named[2]
        if shards := _find_anywhere(arg, layout, warnings):
            return [dataclasses.replace(shard, source=named[1]) for shard in shards]
    missing = "no such file"
    if storage.is_folder(_strip_scheme(arg)):
        missing = "no data file in it (images need a metadata.jsonl beside them, docs/data.md)"
    elif urls.is_url(arg):
        missing = "no such file or folder, or its bucket may not be listed"
    raise SourceError(f"{arg}: {missing}; a source is a file ({KNOWN}), a mix, a glob or a folder")


def _find_anywhere(
    arg: str, layout: Layout, warnings: list[str], in_mix: bool = False
) -> list[InputFile]:
    """The shards of what lies somewhere, or else of a data set of the Hub that has that name."""
    path = _strip_scheme(arg)
    name = hub.parse_name(path)
    is_of_hub = name is not None and urls.is_url(path)
    shards = [] if is_of_hub else _find_at(arg, path, layout, warnings, in_mix)
    if shards or name is None or os.path.lexists(path):
        return shards
    if not is_of_hub and os.path.isdir(os.path.dirname(path)):
        return []  # a path of this machine
    folder, places = hub.download_files(arg, name)
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
    wanted: list[str] = []
    if "#" in path and not (storage.exists(path) or os.path.lexists(path)):
        whole, _, names = path.rpartition("#")
        if storage.exists(whole):
            arg, path = arg[: len(arg) - len(names) - 1], whole
            wanted = [name.strip() for name in names.split(",")]
    if storage.is_folder(path):
        return in_folder(arg, path, layout, warnings, wanted or None)
    is_file = storage.is_file(path) or os.path.lexists(path)
    files = [path] if is_file else storage.glob(path)
    prefix = "" if urls.is_url(path) else arg[: len(arg) - len(path)]
    shards: list[InputFile] = []
    for name in files:
        if (mix := mix_in_file(name)) is None:
            if wanted:
                return []
            parent = os.path.basename(os.path.dirname(urls.to_absolute(name))) or "data"
            source, uri = source_name(os.path.basename(name), parent), prefix + name
            shards.append(InputFile(uri, name, source, required_kind(uri, name), layout))
        elif in_mix:
            raise SourceError(f"{name} is a mix itself: name its data sets in the mix that has it")
        else:
            shards += _of_data_sets(name, data_sets(name, mix, wanted), layout, warnings)
    return shards


def _of_data_sets(
    path: str, given: Sequence[DataSet], layout: Layout, warnings: list[str]
) -> list[InputFile]:
    """The shards of the data sets of the mix at `path`, in order; `layout` holds for what one does
    not state itself."""
    shards = []
    for data_set in given:
        own, names = data_set.layout, ("columns", "tags", "delimiter", "pair", "ignore", "answers")
        own = replace(own, **{n: getattr(layout, n) for n in names if not getattr(own, n)})
        for location in data_set.locations:
            found = _find_anywhere(location, own, warnings, in_mix=True)
            if not found:
                raise SourceError(f"{path}: {location} is not there, or has no data file in it")
            shards += [dataclasses.replace(shard, source=data_set.name) for shard in found]
    return shards


def _check_shard(shard: InputFile) -> None:
    try:
        if urls.is_url(shard.path):
            cache.remembered_stat(shard.path)  # it is there
        elif not stat.S_ISREG(os.stat(shard.path).st_mode):
            raise SourceError(f"{shard.uri} is not a regular file: write its records to one")
    except OSError as error:
        raise unreadable_error(shard.uri, error) from None
    get_container(shard.container, shard.layout.delimiter)


def _strip_scheme(arg: str) -> str:
    """The path of a ``file://`` URL; of any other one, its one spelling."""
    urls.refuse_password(arg)
    return urls.to_absolute(arg) if urls.is_url(arg) else urls.local_path(arg)


# -- mixes -----------------------------------------------------------------------------------------

_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_NOT_READ = frozenset((*_HUBS, "subset", "folder"))
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_MIX = re.compile(r"(.*[-_.])?(mix|meta|dataset_info)\d*([-_.].*)?\.json|.*\.ya?ml", re.DOTALL)
_MAX_BYTES = 16 << 20


class _Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A data set as a mix has it."""

    file_name: str | list[str] = ""
    columns: dict[str, str] = {}
    tags: dict[str, str] = {}
    ignore: list[str] = []
    media_dir: str | None = None
    sample_ratio: float = 1.0
    delimiter: str | None = None
    pair: str | None = None
    answers: str | None = None
    split: str | None = None
    formatting: Literal["alpaca", "sharegpt", "openai"] | None = None
    ranking: bool = False


def is_mix(value: Any) -> bool:
    """Return whether a JSON value is a mix and not a record."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False  # YAML's 5: and yes:
    entries = [entry for name, entry in value.items() if not name.startswith("_")]
    return bool(entries) and all(
        isinstance(entry, dict) and not {"file_name", *_HUBS}.isdisjoint(entry) for entry in entries
    )


def mix_in_file(path: str) -> Any:
    """Return what a file holds that is a mix by its name; None for any other file. Raise a
    SourceError if it cannot be read, is YAML and no mix, or a part of it would be lost."""
    name = os.path.basename(path)
    if _MIX.fullmatch(name) is None or not storage.is_file(path):
        return None
    with raise_unreadable(path):
        data = storage.read_range(path, 0, _MAX_BYTES + 1)
    if name.endswith(".json"):
        try:
            if not is_mix(orjson.loads(data)):
                return None
        except ValueError:  # lines, or cut
            return None
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has over {_MAX_BYTES >> 20} MiB: data does not belong in YAML")
        value = load_document(name, data)
    except ValueError as error:
        raise SourceError(f"{path} is no valid mix: {error}") from None
    if is_mix(value):
        return value
    cure = "write for each data set its name and under it file_name, columns, tags"
    raise SourceError(f"{path} is not a mix: {cure}")


def data_sets(path: str, value: Any, wanted: Sequence[str] = ()) -> list[DataSet]:
    """The data sets of the mix at `path` (those `wanted`, or all), whose relative places are seen
    from its folder. Raise a SourceError if an entry cannot be understood."""
    for name in wanted:
        if name not in value:
            raise SourceError(f"{path} names no data set {name!r}: check what stands behind #")
    taken = [name for name in value if not name.startswith("_") and (not wanted or name in wanted)]
    return [_data_set(path, name, value[name]) for name in taken]


def _data_set(path: str, name: str, given: Mapping[str, Any]) -> DataSet:
    where, folder = f"{path}, data set {name!r}", os.path.dirname(path)
    stated = {
        key: value
        for key, value in given.items()
        if value not in (None, "") and not str(key).startswith("_") and key not in _NOT_READ
    }
    try:
        entry = read_section(where, stated, _Entry)
        if not entry.file_name:
            hubs = [f"{k} is {given[k]!r}, which is not here: " for k in _HUBS if k in given]
            text = f"{''.join(hubs[:1])}give a file_name (a file, glob, folder, or"
            raise OptionError(f"{text} 'hf://datasets/ORG/NAME'), or take others, {path}#NAME,NAME")
        columns = dict(entry.columns)
        if entry.formatting == "alpaca":
            columns = {**_ALPACA, **columns}
            if entry.pair is not None:
                del columns["response"]
        layout = Layout(
            {name: own for name, own in columns.items() if name != own},
            dict(entry.tags),
            _place_below(folder, entry.media_dir) if entry.media_dir else None,
            entry.sample_ratio,
            entry.delimiter,
            entry.pair,
            tuple(entry.ignore),
            entry.answers,
        )
    except OptionError as error:
        raise SourceError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    files = [entry.file_name] if isinstance(entry.file_name, str) else entry.file_name
    places = [_place_below(folder, file) for file in files]
    for number, place in enumerate(places if entry.split else ()):
        if storage.is_file(urls.join_path(place, "dataset_dict.json")):
            places[number] = urls.join_path(place, str(entry.split))
        elif place.startswith(hub.SCHEME) and hub.parse_name(place) and "#" not in place:
            places[number] = f"{place}#{entry.split}"
    return DataSet(name, tuple(places), layout)


def _place_below(folder: str, location: str) -> str:
    """Return a path that is given as seen from the folder of its mix."""
    return location if "://" in location else urls.join_path(folder, location)
