"""Shards of packs, one after the other, each on disk before its note says so.

The note (`OutputFolder.finish`) has what is in the shard, for the index of all shards and for the
next run of the same job, which goes on behind the last shard with a note.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass

import numpy as np

from packidx.export.packed_record import BLOCK, PackMembers
from packidx.io import files
from packidx.io.output_folder import OutputFolder

_END = bytes(2 * BLOCK)
"""What a tar ends with (POSIX.1-2017, pax, ustar interchange format)."""
_BUFFER = 1 << 20

IndexEntry = tuple[str, int, int, list[tuple[str, int, int]]]
"""A sample: key, first byte and bytes in its tar, and its parts as (name, first byte, bytes)."""


@dataclass(slots=True)
class WrittenTar:
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

    @property
    def names(self) -> tuple[str, str]:
        """Its file, and that with where each pack begins."""
        return self.path, f"{self.path}.idx"


def _name(number: int) -> str:
    return f"packs-{number:06d}"


class ShardWriter:
    """Writes packs in order; a shard is full when the next pack would be over its bounds.

    Args:
        max_count: packs of a shard.
        max_bytes: bytes of a shard's file; one pack alone may have more.

    Attributes:
        finished: the shards on disk, those that were taken over included.
    """

    def __init__(self, output: OutputFolder, max_count: int, max_bytes: int) -> None:
        self._output, self._max_count, self._max_bytes = output, max_count, max_bytes
        self.finished = _taken_over(output)
        self._open: _OpenShard | None = None
        output.keep({name for tar in self.finished for name in tar.names})

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
        if self._open is not None and not self._fits(self._open, pack):
            self.close()
        if self._open is None:
            self._open = _OpenShard(self._output.table, len(self.finished), number)
        self._open.add(pack)

    def close(self) -> None:
        """Finish the last shard.

        Raises:
            OSError: it cannot be written.
        """
        if self._open is None:
            return
        self._open.finish()
        tar = self._open.shard
        paths = [os.path.join(self._output.table, name) for name in tar.names]
        facts = {"tar": asdict(tar), "entries": self._open.entries}
        self._output.finish(_name(tar.number), facts, paths)
        self.finished.append(tar)
        self._open = None

    def abandon(self) -> None:
        """Let go of a shard that is not finished."""
        if self._open is not None:
            self._open.file.close()

    def _fits(self, current: _OpenShard, pack: PackMembers) -> bool:
        nbytes = current.offset + len(pack.data) + len(_END)
        return current.shard.num_packs < self._max_count and nbytes <= self._max_bytes


class _OpenShard:
    """The shard that is being written, under a hidden name."""

    def __init__(self, folder: str, number: int, first_pack: int) -> None:
        self.shard = WrittenTar(number, f"{_name(number)}.tar", first_pack)
        self.entries: list[IndexEntry] = []
        self.offset = 0
        self._folder = folder
        self._path = os.path.join(folder, f".{self.shard.path}")
        self._sha256 = hashlib.sha256()
        self.file = open(self._path, "wb", buffering=_BUFFER)  # noqa: SIM115, `finish` closes it

    def add(self, pack: PackMembers) -> None:
        parts = [(name, self.offset + at, nbytes) for name, at, nbytes in pack.parts]
        self.entries.append((pack.key, self.offset, len(pack.data), parts))
        self._write(pack.data)
        shard = self.shard
        shard.num_packs += 1
        shard.num_samples += pack.num_samples
        shard.num_media += len(parts) - 1
        shard.num_tokens += pack.num_tokens
        shard.num_kept += pack.num_kept

    def finish(self) -> None:
        """End the tar and put it and its ``.idx`` in place, on disk."""
        # The last one is where the tar's end begins.
        offsets = np.array([*(row[1] for row in self.entries), self.offset], "<u8")
        self._write(_END)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.shard.nbytes, self.shard.sha256 = self.offset, self._sha256.hexdigest()
        path = os.path.join(self._folder, self.shard.path)
        files.write_atomic(f"{path}.idx", offsets.tobytes())
        os.chmod(self._path, 0o644)
        os.replace(self._path, path)
        files.fsync_path(self._folder)

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self._sha256.update(data)
        self.offset += len(data)


def entries_of(output: OutputFolder, tar: WrittenTar) -> list[IndexEntry]:
    """The samples of a finished shard, as its note has them.

    Raises:
        OSError, ValueError, KeyError: there is no such note.
    """
    entries: list[IndexEntry] = output.facts(_name(tar.number))["entries"]
    return entries


def _taken_over(output: OutputFolder) -> list[WrittenTar]:
    """The shards that an earlier run of this very job has finished, from the first one on."""
    tars: list[WrittenTar] = []
    next_pack = 0
    while True:
        tar = output.finished(_name(len(tars)), lambda facts: WrittenTar(**facts["tar"]))
        if tar is None or tar.first_pack != next_pack:
            return tars
        tars.append(tar)
        next_pack += tar.num_packs
