"""What is ours in a folder of output, and what is refused; one not to be read is an OSError."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from packidx.errors import OptionError
from packidx.io import storage, urls

LIST = ".packidx-files.json"
"""Names the files that packidx has put into a folder of a store."""

FORMAT = "packidx-files"
_BEGUN = {"windows", ".lock"}  # in an index before its first snapshot
_BUCKETS = ("s3", "s3a", "gs", "gcs")  # stores whose URLs begin with a bucket that must be there


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of output, and how a folder of it is known; one kind never replaces another."""

    what: str
    """In words, such as ``lengths table``."""
    manifest: str
    """Name of its manifest."""
    format: str
    """What the manifest says that it is."""
    names: Callable[[dict[str, Any]], Iterable[str]]
    """Files that belong to such a manifest, by their paths below the folder."""

    def own_names(self, folder: str) -> set[str]:
        """Files of such an output in a folder that has a manifest; none where it is another's."""
        manifest = read_json_object(urls.join(folder, self.manifest))
        if manifest.get("format") != self.format:
            return set()
        try:
            return {self.manifest, LIST, *self.names(manifest)}
        except (KeyError, TypeError, AttributeError):
            return {self.manifest, LIST}


def check_free(output: str, kind: Kind) -> tuple[list[str], set[str]]:
    """Return what is below `output`, and which names packidx has put there.

    Raises:
        OptionError: something else is there, or no folder can be.
    """
    _check_folder(output, kind.what)
    there = names_below(output)
    if not there:
        check_bucket(output)
    known = _listed(output, kind) if LIST in there else set()
    if kind.manifest in there and not known.issuperset(there):
        known |= kind.own_names(output)
    for name in there:
        if name not in known or os.path.islink(os.path.join(output, name)):
            raise _is_foreign(output, name)
    return there, known


def check_index(location: str) -> None:
    """Refuse a place where no index is or can be.

    Raises:
        OptionError: it is a file, holds other files, or has no bucket.
    """
    _check_folder(location, "index")
    names = storage.names(location)
    if "snapshots" not in names and (others := sorted({*names} - _BEGUN)):
        raise _is_foreign(location, others[0])
    if not names:
        check_bucket(location)


def _check_folder(output: str, what: str) -> None:
    is_path = os.path.lexists(output) and not os.path.isdir(output)
    if storage.is_file(output) if urls.is_url(output) else is_path:
        raise OptionError(f"{output} is not a folder: name a folder for the {what}")


def check_bucket(url: str) -> None:
    """Raise an OptionError if a store has no such bucket, before work is done."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _BUCKETS:
        return
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    try:
        storage.stat(bucket)
    except FileNotFoundError:
        if not storage.is_folder(bucket):  # old releases of s3fs have no `stat` of an empty bucket
            text = f"{url}: there is no bucket {bucket}: make it, or name another"
            raise OptionError(text) from None
    except (IsADirectoryError, PermissionError):
        return  # it is there, or only parts of it may be asked for


def names_below(folder: str) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted; of this machine's, links to
    folders and empty folders are among them."""
    if urls.is_url(folder):
        return storage.files_below(folder)
    paths = []
    for here, folders, names in os.walk(folder):
        inside = [os.path.join(here, name) for name in folders]
        paths += [os.path.join(here, name) for name in names]
        paths += [path for path in inside if os.path.islink(path) or not os.listdir(path)]
    return sorted(os.path.relpath(path, folder) for path in paths)


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or below it, wherever symbolic links lead."""
    return f"{_real(path)}/".startswith(f"{_real(folder).rstrip('/')}/")


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file; empty where it holds none."""
    try:
        value = json.loads(storage.read(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _listed(folder: str, kind: Kind) -> set[str]:
    """The names in the list of a folder, its own included; none where it is not a list of ours.

    Raises:
        OptionError: it is the list of another kind of output.
    """
    listed = read_json_object(urls.join(folder, LIST))
    if listed.get("format") != FORMAT or not isinstance(listed.get("files"), list):
        return set()
    if listed.get("kind") != kind.what:
        raise OptionError(
            f"{folder} holds a {listed.get('kind')}, and a {kind.what} is to be written: name "
            "another folder"
        )
    return {LIST, *(name for name in listed["files"] if isinstance(name, str))}


def made_by_another(output: str, what: str) -> OptionError:
    """The error of a place that another run is writing to."""
    return OptionError(
        f"another run is making the {what} at {output}: let it finish and start again, or name "
        "another folder"
    )


def _is_foreign(folder: str, name: str) -> OptionError:
    if ours := _of_ours(folder):
        return OptionError(f"{folder} holds {ours}: name another folder")
    return OptionError(
        f"{folder} holds {name}, which packidx did not write: move it away, or name another folder"
    )


def _of_ours(folder: str) -> str | None:
    """The kind of output that a folder holds, in words; None where it is not one of packidx."""
    names = storage.names(folder)
    if "snapshots" in names:
        return "a pack index"
    if "index" in names and "snapshots" in storage.names(urls.join(folder, "index")):
        return "the lengths and index that packidx pack wrote"
    if "manifest.json" not in names:
        return None
    stated = str(read_json_object(urls.join(folder, "manifest.json")).get("format"))
    kind = stated.removeprefix("packidx-")
    return f"the {kind} that packidx wrote" if kind != stated else None


def _real(path: str) -> str:
    return urls.absolute(path) if urls.is_url(path) else os.path.realpath(path)
