"""Folders of output: where one may be written, and how it is built and put into place.

.NAME.new/     beside the folder NAME, locked by the run that works on it
  table/       what is being built
  job          what decides it: of another job nothing is left

It becomes NAME by one rename where nothing is there. Otherwise, as in an object store, its files
are put beside those that are there, the manifest last. Output for a store is built in the cache's
folder, NAME being a digest of the URL. A place that cannot be listed is an OSError.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packidx.digests import digest_parts
from packidx.errors import OptionError
from packidx.io import files, storage, urls
from packidx.io.storage import Uploaded

_BEGUN = {"windows", ".lock"}  # in an index before its first snapshot
_BUCKETS = ("s3", "s3a", "gs", "gcs")  # stores whose URLs begin with a bucket that must be there
_UNFINISHED = "unfinished"  # member of the manifest of an export that is being uploaded


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of output, and how a folder of it is known; one kind never replaces another."""

    what: str
    """The job in words, such as ``lengths table``."""
    manifest: str
    """Name of its manifest."""
    format: str
    """`format` in its manifest."""
    parts: re.Pattern[str] | None = None
    """Names of its other files if each has a digest of the content in it. Such an output can be
    replaced: new files never take the place of old ones, and the manifest is written last."""

    def is_part(self, name: str) -> bool:
        """Return True if a file has the name of a part."""
        return self.parts is not None and self.parts.fullmatch(name) is not None


def check_free(output: str, kind: Kind) -> None:
    """Refuse a place where no output of a kind can be written. Raise an OptionError if it is a
    file, holds something else, or an output that is never replaced."""
    names = _list_folder(output, kind.what)
    if kind.manifest not in names:
        _check_foreign(output, [name for name in names if not kind.is_part(name)], kind.what)
        return
    stated = read_json_object(urls.join_path(output, kind.manifest))
    if stated.get("format") != kind.format:
        _check_foreign(output, [kind.manifest], kind.what)
    if kind.parts is None and _UNFINISHED not in stated:
        text = f"{output} holds a {kind.what}, which is never overwritten"
        raise OptionError(f"{text}: delete it, or name another folder")


def check_index(location: str) -> None:
    """Raise an OptionError for a place where no index is or can be."""
    names = _list_folder(location, "index")
    if "snapshots" not in names:
        _check_foreign(location, sorted({*names} - _BEGUN), "index")


def _list_folder(output: str, what: str) -> list[str]:
    """Return the names in a folder, which need not be there."""
    is_path = os.path.lexists(output) and not os.path.isdir(output)
    if storage.is_file(output) if urls.is_url(output) else is_path:
        raise OptionError(f"{output} is not a folder: name a folder for the {what}")
    names = storage.list_names(output)
    if not names:
        check_bucket(output)
    return names


def _check_foreign(folder: str, names: Sequence[str], what: str) -> None:
    if names:
        raise OptionError(f"{folder} holds {names[0]}, which is of no {what}: name another folder")


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
            raise OptionError(f"{url}: there is no bucket {bucket}: make it first") from None
    except (IsADirectoryError, PermissionError):
        return  # it is there, or only parts of it may be asked for


def is_within(path: str, folder: str) -> bool:
    """Return True if `path` is `folder` or below it, wherever symbolic links lead."""
    real = [urls.to_absolute(p) if urls.is_url(p) else os.path.realpath(p) for p in (path, folder)]
    return f"{real[0]}/".startswith(f"{real[1].rstrip('/')}/")


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file; empty where it holds none."""
    try:
        value = json.loads(storage.read(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """The folder in which a job builds its output, and the parts that are finished."""

    path: str
    """The hidden folder."""

    @property
    def table(self) -> str:
        """Folder that becomes the output."""
        return os.path.join(self.path, "table")

    def scratch(self, name: str) -> str:
        """A folder, made if need be, for what is not in the output."""
        path = os.path.join(self.path, name)
        os.makedirs(path, exist_ok=True)
        return path

    def keep(self, names: Collection[str]) -> None:
        """Remove everything from the output but the files of these names."""
        for entry in os.scandir(self.table):
            if entry.is_dir(follow_symlinks=False):
                files.remove_tree(entry.path)
            elif entry.name not in names:
                os.unlink(entry.path)


@contextlib.contextmanager
def replace_output(
    path: str, kind: Kind, identity: str, uploaded: Uploaded | None = None
) -> Iterator[OutputFolder]:
    """A new folder beside `path`, which `check_free` lets pass, put there if the block ends well.

    When it does not, or the process is killed, finished parts stay: the next run of the same job
    finds them, one of another job to the same `path` removes them.

    Args:
        identity: what decides the output.
        uploaded: called with how many files of how many are uploaded.

    Raises:
        OptionError: the folder cannot be made or put in place, or another run is making it.
    """
    if not path:  # which is the working folder, to some functions, and nothing, to others
        raise OptionError(f"the path of the {kind.what} is empty: name a folder")
    output = OutputFolder(_hidden_folder(local_home(path)))
    try:
        os.makedirs(output.path, exist_ok=True)
        with files.hold_lock(output.path) as free:
            if not free:
                text = f"another run is making the {kind.what} at {path}"
                raise OptionError(f"{text}: let it finish, or name another folder")
            try:
                _begin_job(output, identity)
                yield output
                _publish_files(output.table, path, kind, uploaded)
                files.remove_tree(output.path)
            except BaseException:
                if not any(kind.is_part(path.name) for path in Path(output.table).glob("*")):
                    files.remove_tree(output.path)
                raise
    except OSError as error:
        files.refuse_open_files(error)
        where = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or error
        raise OptionError(f"cannot write the {kind.what} to {path}: {reason}{where}") from error


def _begin_job(output: OutputFolder, identity: str) -> None:
    """Empty the folder if it is another job's, and say whose it is."""
    stated = os.path.join(output.path, "job")
    if not os.path.exists(stated) or storage.read(stated) != identity.encode():
        for entry in os.scandir(output.path):
            if entry.is_dir(follow_symlinks=False):
                files.remove_tree(entry.path)
        files.write_atomic(stated, identity.encode())
    os.makedirs(output.table, exist_ok=True)


def local_home(location: str) -> str:
    """Return where this machine builds what goes to a path or URL; the same in every run."""
    if not urls.is_url(location):
        return os.path.realpath(location)
    from packidx.io import cache

    name = digest_parts(urls.to_absolute(location).encode())[:32]
    return os.path.join(cache.get_folder(), "staging", name)


def _hidden_folder(home: str) -> str:
    return os.path.join(os.path.dirname(home), f".{os.path.basename(home)}.new")


def discard_abandoned(path: str) -> None:
    """Delete what a killed run to `path` has left; what a living run has is locked."""
    folder = _hidden_folder(local_home(path))
    with contextlib.suppress(PermissionError), files.hold_lock(folder) as free:
        if free:
            files.remove_tree(folder)


def _publish_files(folder: str, path: str, kind: Kind, uploaded: Uploaded | None) -> None:
    """Put the files of a folder into `path`, in an order in which no reader sees half of it.

    A store has no locks. Of two runs that write to one place at once, files of both may be left;
    the manifest, which states the digest of each, then shows it to every reader.
    """
    found = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in names)
    names = sorted(os.path.relpath(each, folder) for each in found)
    hidden = [name for name in names if name.startswith(".") and name != kind.manifest]
    first = [name for name in names if name not in (*hidden, kind.manifest)]
    groups = (first, hidden, [kind.manifest])  # Energon reads what is hidden first
    if urls.is_url(path):
        if kind.parts is None:
            stated = {"format": kind.format, _UNFINISHED: True}
            storage.write(urls.join_path(path, kind.manifest), json.dumps(stated).encode())
        for group in groups:
            targets = {urls.join_path(path, name): os.path.join(folder, name) for name in group}
            storage.upload_all(targets, uploaded if group is first else None)
    else:
        path = os.path.realpath(path)
        for inner, _, _ in os.walk(folder):
            files.fsync_path(inner)
        if not storage.list_names(path):
            os.rename(folder, path)
            files.fsync_path(os.path.dirname(path))
            return
        if kind.parts is None:  # which others may have made meanwhile
            check_free(path, kind)
        for group in groups:
            for name in group:
                os.rename(os.path.join(folder, name), os.path.join(path, name))
            files.fsync_path(path)
    remove_stale(path, kind, names)


def remove_stale(output: str, kind: Kind, names: Collection[str]) -> None:
    """Delete the parts in a folder that are not among the files `names` of its manifest."""
    stale = {name for name in storage.list_names(output) if kind.is_part(name)} - {*names}
    paths = [urls.join_path(output, name) for name in sorted(stale)]
    storage.map_overlapped(storage.remove_file if urls.is_url(output) else os.unlink, paths)
