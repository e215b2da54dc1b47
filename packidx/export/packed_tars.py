"""Shards of packs, one after the other, each on disk before its note says so.

The note (`OutputFolder.finish`) has what is in the shard, for the index of all shards and for the
next run of the same job, which goes on behind the last shard with a note.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from typing import BinaryIO

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
    def name(self) -> str:
        """What its note is called."""
        return self.path.removesuffix(".tar")

    @property
    def names(self) -> tuple[str, str]:
        """Its file, and that with where each pack begins."""
        return self.path, f"{self.path}.idx"


def _tar(number: int, first_pack: int) -> WrittenTar:
    return WrittenTar(number, f"packs-{number:06d}.tar", first_pack)


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
        self._tar: WrittenTar | None = None
        self._file: BinaryIO | None = None
        self._entries: list[IndexEntry] = []
        self._sha256 = hashlib.sha256()
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
        tar = self._tar
        if tar is not None and (
            tar.num_packs == self._max_count
            or tar.nbytes + len(pack.data) + len(_END) > self._max_bytes
        ):
            self.close()
        if self._tar is None:
            self._tar = _tar(len(self.finished), number)
            self._file = open(self._path(f".{self._tar.path}"), "wb", buffering=_BUFFER)  # noqa: SIM115
            self._entries, self._sha256 = [], hashlib.sha256()
        tar = self._tar
        parts = [(name, tar.nbytes + at, nbytes) for name, at, nbytes in pack.parts]
        self._entries.append((pack.key, tar.nbytes, len(pack.data), parts))
        self._write(pack.data)
        tar.num_packs += 1
        tar.num_samples += pack.num_samples
        tar.num_media += len(parts) - 1
        tar.num_tokens += pack.num_tokens
        tar.num_kept += pack.num_kept

    def close(self) -> None:
        """Finish the last shard: it and its ``.idx`` are on disk, then its note.

        Raises:
            OSError: it cannot be written.
        """
        tar, file = self._tar, self._file
        if tar is None or file is None:
            return
        # The last one is where the tar's end begins.
        offsets = np.array([*(row[1] for row in self._entries), tar.nbytes], "<u8")
        self._write(_END)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        tar.sha256 = self._sha256.hexdigest()
        paths = [self._path(name) for name in tar.names]
        files.write_atomic(paths[1], offsets.tobytes())
        os.chmod(file.name, 0o644)
        os.replace(file.name, paths[0])
        files.fsync_path(self._output.table)
        self._output.finish(tar.name, {"tar": asdict(tar), "entries": self._entries}, paths)
        self.finished.append(tar)
        self._tar = self._file = None

    def abandon(self) -> None:
        """Let go of a shard that is not finished."""
        if self._file is not None:
            self._file.close()

    def _path(self, name: str) -> str:
        return os.path.join(self._output.table, name)

    def _write(self, data: bytes) -> None:
        assert self._tar is not None and self._file is not None
        self._file.write(data)
        self._sha256.update(data)
        self._tar.nbytes += len(data)


def _taken_over(output: OutputFolder) -> list[WrittenTar]:
    """The shards that an earlier run of this very job has finished, from the first one on."""
    tars: list[WrittenTar] = []
    next_pack = 0
    while True:
        name = _tar(len(tars), next_pack).name
        tar = output.finished(name, lambda facts: WrittenTar(**facts["tar"]))
        if tar is None or tar.first_pack != next_pack:
            return tars
        tars.append(tar)
        next_pack += tar.num_packs
