"""Where an export may be written: over an earlier one of its kind, or where nothing is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import PurePath

from packidx.errors import ChangedSource, OptionError, PackidxError
from packidx.index import Index
from packidx.io import storage, urls
from packidx.io.own_files import check_bucket, check_free
from packidx.records.fetch import Fetcher


def check_output(
    output: str, index: Index, what: str, own_files: Callable[[str], set[str]]
) -> None:
    """Refuse an output that holds what the export reads, or what no export has written.

    Args:
        output: a folder, or a URL of one.
        index: what is exported.
        what: the kind of export, as `packidx.io.output_folder.replacing` is told.
        own_files: names of the files of an earlier export in a folder; none where it is no export.

    Raises:
        OptionError: it does, is in the index, or is no folder.
    """
    for path in (index.path, *(index.resolve(one["uri"]) for one in index.manifest["shards"])):
        if _is_inside(path, output):
            raise OptionError(f"{output} holds {path}, which is exported: name another folder")
    if _is_inside(output, index.path):
        raise OptionError(f"{output} is in the index {index.path}: name a folder outside of it")
    if urls.is_url(output):
        check_bucket(output)
        check_free(output, what)
    elif os.path.isdir(output):
        foreign = next(_foreign(output, own_files(output)), None)
        if foreign is not None:
            raise OptionError(
                f"{output} holds {foreign}, which packidx did not write: move it away, or name "
                "another folder"
            )
    elif os.path.lexists(output):
        raise OptionError(f"{output} is no folder: name a folder for the export")


def check_shards(index: Index) -> None:
    """Refuse to copy what was written since it was counted, as far as can be seen without reading.

    Raises:
        ChangedSource: a shard has other bytes than the one that was counted.
    """
    fetcher = Fetcher(index)

    def look(number: int) -> None:
        with contextlib.suppress(PackidxError):  # told where its samples are read, if there are any
            fetcher.shard(number)

    storage.overlapped(look, range(len(index.manifest["shards"])))
    for change in fetcher.take_changes():
        if change.certain:
            raise ChangedSource(change.text)


def _foreign(output: str, own: set[str]) -> Iterator[str]:
    """Files that are not among `own`, and links and folders that hold none of these."""
    folders = {str(parent) for name in own for parent in PurePath(name).parents}
    for here, below, names in os.walk(output):
        for name in sorted([*below, *names]):
            path = os.path.join(here, name)
            place = os.path.relpath(path, output)
            known = own if name in names or os.path.islink(path) else folders
            if place not in known or (os.path.islink(path) and place in own):
                yield place


def _is_inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or below it, wherever symbolic links lead."""
    return f"{_real(path)}/".startswith(f"{_real(folder)}/")


def _real(path: str) -> str:
    return urls.absolute(path) if urls.is_url(path) else os.path.realpath(path)
