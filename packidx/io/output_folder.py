"""A folder of output: built beside the path that was named, swapped in whole, or not at all.

.NAME.new-<identity>/   beside the folder NAME, locked by the run that works on it
  table/                what is being built: it becomes NAME
  notes/                what is finished of it, for the next run of the same job

What goes into an object store is built in the cache's folder, NAME being a digest of the URL, and
then uploaded (`packidx.io.publish`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from packidx.digests import digest
from packidx.errors import OptionError
from packidx.io import files, urls
from packidx.io.own_files import Kind, made_by_another

if TYPE_CHECKING:
    from packidx.io.publish import Uploaded

_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_ATTEMPTS = 20  # a second in all: who removes an abandoned folder locks it for an instant
_PAUSE = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """Where a job builds its output, and what is finished of it."""

    path: str
    """The hidden folder."""
    identity: str = ""
    """Digest of everything that decides the output."""
    discarded: int = 0
    """Finished parts of killed runs with other settings, which were removed."""

    @property
    def table(self) -> str:
        """Folder that becomes the output."""
        return os.path.join(self.path, "table")

    @property
    def notes(self) -> str:
        """Folder of notes on what is finished."""
        return os.path.join(self.path, "notes")

    def scratch(self, name: str) -> str:
        """A folder, made if need be, for what is not in the output."""
        path = os.path.join(self.path, name)
        os.makedirs(path, exist_ok=True)
        return path

    def finish(self, part: str, facts: Mapping[str, Any], paths: Sequence[str]) -> None:
        """Note that a part is finished, so that the next run of this job takes it over.

        Args:
            facts: what that run must know of it, as JSON.
            paths: its files, which are on disk.

        Raises:
            OSError: it cannot be written.
        """
        stated = {os.path.relpath(path, self.path): _stamp(path) for path in paths}
        note = {"identity": self.identity, "files": stated, "facts": facts}
        files.write_atomic(self._note(part), json.dumps(note).encode())

    def finished(self, part: str, make: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what ``make(facts)`` gives of a part that is finished; None where it must be done
        again.

        Its files need not be read, which takes hours of terabytes. But they must be the very ones:
        a run that is killed right after it has put its output in place leaves its notes beside the
        files of the output that was there before.
        """
        try:
            note = self._read(part)
            for name, stamp in note["files"].items():
                if _stamp(os.path.join(self.path, name)) != stamp:
                    return None
            return make(note["facts"]) if note["identity"] == self.identity else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def facts(self, part: str) -> dict[str, Any]:
        """Return what `finish` was told of a part.

        Raises:
            OSError, ValueError, KeyError: there is no such note.
        """
        facts: dict[str, Any] = self._read(part)["facts"]
        return facts

    def keep(self, names: Collection[str]) -> None:
        """Remove everything from the output but the files of these names."""
        for entry in os.scandir(self.table):
            if entry.is_dir(follow_symlinks=False):
                files.remove_tree(entry.path)
            elif entry.name not in names:
                os.unlink(entry.path)

    def num_finished(self) -> int:
        """Return how many parts are finished."""
        try:
            return len([name for name in os.listdir(self.notes) if not name.startswith(".")])
        except FileNotFoundError:
            return 0

    def _read(self, part: str) -> dict[str, Any]:
        with open(self._note(part), "rb") as file:
            note: dict[str, Any] = json.load(file)
        return note

    def _note(self, part: str) -> str:
        return os.path.join(self.notes, f"{part}.json")


@contextlib.contextmanager
def replacing(
    path: str, kind: Kind, identity: str, uploaded: Uploaded | None = None
) -> Iterator[OutputFolder]:
    """A new folder beside `path` that takes its place, whole, when the block ends well.

    When it does not, or the process is killed, finished parts stay: the next run of the same job
    finds them, one of another job to the same `path` removes them.

    Args:
        identity: digest of everything that decides the output.
        uploaded: called with how many files of how many are uploaded.

    Raises:
        OptionError: the folder cannot be made or put in place, or another run is making it.
    """
    if not path:  # which is the working folder, to some functions, and nothing, to others
        raise OptionError(f"the path of the {kind.what} is empty: name a folder")
    real = local_home(path)
    parent, name = os.path.split(real)
    own = f".{name}.new-{identity[:16]}"
    try:
        os.makedirs(parent, exist_ok=True)
        discarded = _remove_abandoned(real, own)
        output = OutputFolder(os.path.join(parent, own), identity, discarded)
        with _claimed(output.path, path, kind.what):
            try:
                os.makedirs(output.table, exist_ok=True)
                os.makedirs(output.notes, exist_ok=True)
                yield output
                if urls.is_url(path):
                    from packidx.io.publish import publish

                    publish(output.table, path, kind, uploaded)
                else:
                    files.fsync_path(output.table)
                    _swap(output.table, real)
                    files.fsync_path(parent)
                files.remove_tree(output.path)  # with the output that was replaced
            except BaseException:
                if not output.num_finished():
                    files.remove_tree(output.path)
                raise
    except OSError as error:
        where = f" ({error.filename})" if urls.is_url(path) and error.filename else ""
        reason = error.strerror or error
        raise OptionError(f"cannot write the {kind.what} to {path}: {reason}{where}") from error


def local_home(location: str) -> str:
    """Return where this machine builds what goes to a path or URL; the same in every run."""
    if not urls.is_url(location):
        return os.path.realpath(location)
    from packidx.io import cache

    return os.path.join(cache.folder(), "staging", digest(urls.absolute(location).encode())[:32])


def discard_abandoned(path: str) -> int:
    """Delete what killed runs to `path` have left; how many finished parts were in it."""
    home = local_home(path)
    return _remove_abandoned(home) if os.path.isdir(os.path.dirname(home)) else 0


def _remove_abandoned(home: str, own: str = "") -> int:
    """Delete the folders that killed runs to `home` have left, and tell how many finished parts
    were in them. What a living run has is locked.

    Args:
        own: the name of one that stays.
    """
    discarded = 0
    parent, name = os.path.split(home)
    staging = re.compile(re.escape(f".{name}.new-") + "[0-9a-f]{16}")
    for entry in filter(staging.fullmatch, os.listdir(parent)):
        folder = os.path.join(parent, entry)
        if entry == own or not os.path.isdir(folder):
            continue
        with contextlib.suppress(PermissionError), files.locked(folder) as free:
            if free:
                discarded += OutputFolder(folder).num_finished()
                files.remove_tree(folder)
    return discarded


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


def _stamp(path: str) -> list[int]:
    """Return what no other file has; a copy is another one."""
    status = os.stat(path)
    return [status.st_size, status.st_ino, status.st_mtime_ns]


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
