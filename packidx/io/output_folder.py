"""A folder of output: built beside the path that was named, swapped in whole, or not at all.

.NAME.new/     beside the folder NAME, locked by the run that works on it
  table/       what is being built: it becomes NAME
  notes/       what is finished of it, for the next run of the same job, if no notes are in it
  before/      what killed runs have made of a lengths table
  job          what decides it: of another job nothing is left

What goes into an object store is built in the cache's folder, NAME being a digest of the URL, and
then uploaded (`packidx.io.publish`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packidx.digests import digest
from packidx.errors import OptionError
from packidx.io import files, storage, urls
from packidx.io.own_files import Kind, made_by_another

if TYPE_CHECKING:
    from packidx.io.publish import Uploaded

_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_ATTEMPTS = 20  # a second in all: who removes an abandoned folder locks it for an instant
_PAUSE = 0.05


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

    def finish(self, part: str, facts: Mapping[str, Any]) -> None:
        """Note that a part, whose files are on disk, is finished: the next run takes it over.

        Args:
            facts: what that run must know of it, as JSON.

        Raises:
            OSError: it cannot be written.
        """
        files.write_atomic(self._note(part), json.dumps(facts).encode())

    def finished(self, part: str) -> dict[str, Any] | None:
        """Return the facts of a part that is finished; None where it must be done again."""
        try:
            with open(self._note(part), "rb") as file:
                facts: dict[str, Any] = json.load(file)
                return facts
        except FileNotFoundError:
            return None

    def keep(self, names: Collection[str]) -> None:
        """Remove everything from the output but the files of these names."""
        for entry in os.scandir(self.table):
            if entry.is_dir(follow_symlinks=False):
                files.remove_tree(entry.path)
            elif entry.name not in names:
                os.unlink(entry.path)

    def has_finished(self) -> bool:
        """Return whether there is a note of what is finished."""
        places = ("notes/*.json", "table/note-*", "before/*/note-*")
        return any(True for place in places for _ in Path(self.path).glob(place))

    def _note(self, part: str) -> str:
        return os.path.join(self.scratch("notes"), f"{part}.json")


@contextlib.contextmanager
def replacing(
    path: str, kind: Kind, identity: str, uploaded: Uploaded | None = None
) -> Iterator[OutputFolder]:
    """A new folder beside `path` that takes its place, whole, when the block ends well.

    When it does not, or the process is killed, what is in it stays: the next run of the same job
    finds it, one of another job to the same `path` removes it.

    Args:
        identity: what decides the output.
        uploaded: called with how many files of how many are uploaded.

    Raises:
        OptionError: the folder cannot be made or put in place, or another run is making it.
    """
    if not path:  # which is the working folder, to some functions, and nothing, to others
        raise OptionError(f"the path of the {kind.what} is empty: name a folder")
    real = local_home(path)
    output = OutputFolder(_hidden(real))
    try:
        with _claimed(output.path, path, kind.what):
            try:
                _begin(output, identity)
                yield output
                if urls.is_url(path):
                    from packidx.io.publish import publish

                    publish(output.table, path, kind, uploaded)
                else:
                    files.fsync_path(output.table)
                    _swap(output.table, real)
                    files.fsync_path(os.path.dirname(real))
                files.remove_tree(output.path)  # with the output that was replaced
            except BaseException:
                if not output.has_finished():
                    files.remove_tree(output.path)
                raise
    except OSError as error:
        where = f" ({error.filename})" if urls.is_url(path) and error.filename else ""
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


@contextlib.contextmanager
def _claimed(folder: str, path: str, what: str) -> Iterator[None]:
    """Make a folder if need be and lock it for as long as the block, or the process, lives."""
    for _ in range(_ATTEMPTS):
        os.makedirs(folder, exist_ok=True)
        with files.locked(folder) as free:
            if free:
                yield
                return
        time.sleep(_PAUSE)
    raise made_by_another(path, what)


def _swap(folder: str, path: str) -> None:
    """Put `folder` at `path`; what was there is then at `folder`."""
    if not os.path.isdir(path) or not os.listdir(path):
        os.rename(folder, path)
    elif not _exchange(folder, path):
        # No such system call here: for an instant there is no table, but never half a one.
        old = f"{folder}.old"
        os.rename(path, old)
        os.rename(folder, path)
        os.rename(old, folder)


def _exchange(first: str, other: str) -> bool:
    """Swap two folders atomically (renameat2); False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(other)
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)
