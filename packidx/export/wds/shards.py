"""Shards of packs, one after the other, each on disk before its note says so.

A note is a JSON file beside the folder that is being built: what is in the shard, for the index of
all shards and for the next run of the same job, which goes on behind the last shard with a note.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from array import array
from dataclasses import asdict, dataclass
from typing import Any

from packidx.export.wds.pack import BLOCK, PackMembers
from packidx.io import files
from packidx.io.output_folder import Place

_END = bytes(2 * BLOCK)
"""What a tar ends with (POSIX.1-2017, pax, ustar interchange format)."""
_BUFFER = 1 << 20

Row = tuple[str, int, int, list[tuple[str, int, int]]]
"""A sample: key, first byte and bytes in its tar, and its parts as (name, first byte, bytes)."""


@dataclass(slots=True)
class Shard:
    """A tar of packs."""

    number: int
    path: str
    first_pack: int
    num_packs: int = 0
    nbytes: int = 0
    sha256: str = ""
    num_samples: int = 0
    num_media: int = 0
    num_tokens: int = 0
    num_kept: int = 0
    """Samples whose messages are under ``_meta``."""


def shard_name(number: int) -> str:
    """Name of shard `number`."""
    return f"packs-{number:06d}.tar"


class ShardWriter:
    """Writes packs in order; a shard is full when the next pack would be over its bounds.

    Args:
        place: where.
        max_count: packs of a shard.
        max_bytes: bytes of a shard's file; one pack alone may have more.

    Attributes:
        finished: the shards on disk, those that were taken over included.
    """

    def __init__(self, place: Place, max_count: int, max_bytes: int) -> None:
        self._place, self._max_count, self._max_bytes = place, max_count, max_bytes
        self.finished = _taken_over(place)
        self._open: _OpenShard | None = None
        _tidy(place, self.finished)

    @property
    def next_pack(self) -> int:
        """Number of the first pack that no finished shard holds."""
        last = self.finished[-1] if self.finished else None
        return 0 if last is None else last.first_pack + last.num_packs

    def add(self, number: int, pack: PackMembers) -> None:
        """Write pack `number`, the one after the last.

        Raises:
            OSError: it cannot be written.
        """
        current = self._open
        if current is not None and not self._fits(current, pack):
            self._finish(current)
            current = None
        if current is None:
            current = _OpenShard(self._place.table, len(self.finished), number)
            self._open = current
        current.add(pack)

    def close(self) -> None:
        """Finish the last shard.

        Raises:
            OSError: it cannot be written.
        """
        if self._open is not None:
            self._finish(self._open)
            self._open = None

    def abandon(self) -> None:
        """Let go of a shard that is not finished."""
        if self._open is not None:
            self._open.file.close()

    def _fits(self, current: _OpenShard, pack: PackMembers) -> bool:
        nbytes = current.offset + len(pack.data) + len(_END)
        return current.shard.num_packs < self._max_count and nbytes <= self._max_bytes

    def _finish(self, current: _OpenShard) -> None:
        current.finish()
        shard = current.shard
        path = os.path.join(self._place.table, shard.path)
        note = {"job": self._place.job, "file": _identity(path), **asdict(shard)}
        note["rows"] = current.rows
        files.write_atomic(_note(self._place, shard.number), json.dumps(note).encode())
        self.finished.append(shard)


class _OpenShard:
    """The shard that is being written, under a hidden name."""

    def __init__(self, folder: str, number: int, first_pack: int) -> None:
        self.shard = Shard(number, shard_name(number), first_pack)
        self.rows: list[Row] = []
        self.offset = 0
        self._folder = folder
        self._path = os.path.join(folder, f".{self.shard.path}")
        self._sha256 = hashlib.sha256()
        self.file = open(self._path, "wb", buffering=_BUFFER)  # noqa: SIM115, `finish` closes it

    def add(self, pack: PackMembers) -> None:
        parts = [(name, self.offset + at, nbytes) for name, at, nbytes in pack.parts]
        self.rows.append((pack.key, self.offset, len(pack.data), parts))
        self._write(pack.data)
        shard = self.shard
        shard.num_packs += 1
        shard.num_samples += pack.num_samples
        shard.num_media += len(parts) - 1
        shard.num_tokens += pack.num_tokens
        shard.num_kept += pack.num_kept

    def finish(self) -> None:
        """End the tar and put it and its ``.idx`` in place, on disk."""
        offsets = array("Q", [row[1] for row in self.rows])
        offsets.append(self.offset)  # one past the last sample, where the tar's end begins
        self._write(_END)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.shard.nbytes, self.shard.sha256 = self.offset, self._sha256.hexdigest()
        path = os.path.join(self._folder, self.shard.path)
        files.write_atomic(f"{path}.idx", _little_endian(offsets))
        os.chmod(self._path, 0o644)
        os.replace(self._path, path)
        files.fsync_path(self._folder)

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self._sha256.update(data)
        self.offset += len(data)


def rows_of(place: Place, shard: Shard) -> list[Row]:
    """The samples of a finished shard, as its note has them.

    Raises:
        OSError, ValueError, KeyError: there is no such note.
    """
    rows: list[Row] = _load_note(place, shard.number)["rows"]
    return rows


def _identity(path: str) -> list[int]:
    """What no other file has; a copy is another one."""
    found = os.stat(path)
    return [found.st_ino, found.st_mtime_ns]


def _little_endian(offsets: array[int]) -> bytes:
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()


def _note(place: Place, number: int) -> str:
    return os.path.join(place.notes, f"packs-{number:06d}.json")


def _load_note(place: Place, number: int) -> dict[str, Any]:
    with open(_note(place, number), "rb") as file:
        note: dict[str, Any] = json.load(file)
    return note


def _taken_over(place: Place) -> list[Shard]:
    """The shards that an earlier run of this very job has finished, from the first one on.

    A tar was on disk before its note was written, so it need not be read: terabytes take hours. But
    it must be the very file: a run that is killed right after it has put its output in place leaves
    its notes beside the tars of the export that was there before.
    """
    found: list[Shard] = []
    next_pack = 0
    while True:
        try:
            note = _load_note(place, len(found))
            job, file, rows = (note.pop(name) for name in ("job", "file", "rows"))
            shard = Shard(**note)
            path = os.path.join(place.table, shard_name(len(found)))
            same = job == place.job and file == _identity(path)
            sizes = os.path.getsize(path), os.path.getsize(f"{path}.idx")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return found
        whole = (shard.nbytes, 8 * (shard.num_packs + 1)) == sizes and len(rows) == shard.num_packs
        if not same or not whole or shard.first_pack != next_pack:
            return found
        found.append(shard)
        next_pack += shard.num_packs


def _tidy(place: Place, finished: list[Shard]) -> None:
    """Remove from the folders everything that is no finished shard's."""
    kept = {name for shard in finished for name in (shard.path, f"{shard.path}.idx")}
    for name in os.listdir(place.table):
        path = os.path.join(place.table, name)
        if os.path.isdir(path):
            files.remove_tree(path)
        elif name not in kept:
            os.unlink(path)
    notes = {os.path.basename(_note(place, shard.number)) for shard in finished}
    for name in os.listdir(place.notes):
        if name not in notes:
            os.unlink(os.path.join(place.notes, name))
