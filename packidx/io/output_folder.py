"""A folder of output: built beside the path that was named, and put there when it is whole.

.NAME.new/     beside the folder NAME, locked by the run that works on it
  table/       what is being built
  job          what decides it: of another job nothing is left

It becomes NAME by one rename where nothing is there. Otherwise, as in an object store, its files
are put beside those that are there, the manifest last. Output for a store is built in the cache's
folder, NAME being a digest of the URL.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packidx.digests import digest
from packidx.errors import OptionError
from packidx.io import files, storage, urls
from packidx.io.files import refuse_open_files
from packidx.io.own_files import UNFINISHED, Kind, check_manifest, is_part, remove_stale
from packidx.io.storage import Uploaded


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """Where a job builds its output, and what is finished of it."""

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
def replacing(
    path: str, kind: Kind, identity: str, uploaded: Uploaded | None = None
) -> Iterator[OutputFolder]:
    """A new folder beside `path` that is put there when the block ends well.

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
    output = OutputFolder(_hidden(local_home(path)))
    try:
        os.makedirs(output.path, exist_ok=True)
        with files.locked(output.path) as free:
            if not free:
                raise OptionError(
                    f"another run is making the {kind.what} at {path}: let it finish and start "
                    "again, or name another folder"
                )
            try:
                _begin(output, identity)
                yield output
                _publish(output.table, path, kind, uploaded)
                files.remove_tree(output.path)
            except BaseException:
                if not any(is_part(path.name, kind) for path in Path(output.table).glob("*")):
                    files.remove_tree(output.path)
                raise
    except OSError as error:
        refuse_open_files(error)
        where = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or error
        raise OptionError(f"cannot write the {kind.what} to {path}: {reason}{where}") from error


def _begin(output: OutputFolder, identity: str) -> None:
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

    return os.path.join(cache.folder(), "staging", digest(urls.absolute(location).encode())[:32])


def _hidden(home: str) -> str:
    return os.path.join(os.path.dirname(home), f".{os.path.basename(home)}.new")


def discard_abandoned(path: str) -> None:
    """Delete what a killed run to `path` has left; what a living run has is locked."""
    folder = _hidden(local_home(path))
    with contextlib.suppress(PermissionError), files.locked(folder) as free:
        if free:
            files.remove_tree(folder)


def _publish(folder: str, path: str, kind: Kind, uploaded: Uploaded | None) -> None:
    """Put the files of a folder into `path`, in an order in which no reader sees half of it.

    Files of others are neither overwritten nor deleted.

    Raises:
        OptionError: something else is at `path`.
        OSError: it cannot be written.
    """
    names = [os.path.relpath(file, folder) for file in sorted(Path(folder).rglob("*"))]
    names = [name for name in names if not os.path.isdir(os.path.join(folder, name))]
    check_manifest(path, there := storage.names(path), kind)
    manifest = urls.join(path, kind.manifest)
    before = storage.read(manifest) if kind.manifest in there else b""
    if urls.is_url(path):
        _upload(folder, path, kind, names, uploaded)
    else:
        for inner, _, _ in os.walk(folder):
            files.fsync_path(inner)
        real = os.path.realpath(path)
        if not there:
            os.rename(folder, real)
            files.fsync_path(os.path.dirname(real))
            return
        _move(folder, real, kind, names)
    remove_stale(path, kind, names, before)


def _move(folder: str, path: str, kind: Kind, names: list[str]) -> None:
    """Move files into a folder of this machine that is not empty, the manifest last."""
    taken = [name for name in names if os.path.lexists(os.path.join(path, name))]
    for name in taken:
        if name != kind.manifest and not is_part(name, kind):
            raise OptionError(f"{path} holds {name} by now: name another folder")
    for name in sorted(names, key=lambda name: name == kind.manifest):
        target = os.path.join(path, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if name == kind.manifest:
            files.fsync_path(path)
        os.rename(os.path.join(folder, name), target)
    files.fsync_path(path)


def _upload(folder: str, url: str, kind: Kind, names: list[str], uploaded: Uploaded | None) -> None:
    """Upload files, the manifest last.

    A store has no locks. Of two runs that write to one place at once, files of both may be left;
    the manifest, which states the digest of each, then shows it to whoever reads them.
    """
    manifest = urls.join(url, kind.manifest)
    if kind.parts is None:
        stated = {"format": kind.format, UNFINISHED: True}
        storage.write(manifest, json.dumps(stated).encode())
    last = [name for name in names if name.startswith(".") and name != kind.manifest]
    first = [name for name in names if name not in (*last, kind.manifest)]
    for group in (first, last, [kind.manifest]):  # a reader begins with what is hidden
        place: Mapping[str, str] = {urls.join(url, n): os.path.join(folder, n) for n in group}
        storage.upload_all(place, uploaded if group is first else None)
