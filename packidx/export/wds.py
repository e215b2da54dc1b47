"""`export wds`: a snapshot's packs as the samples of new tars, with their media in them.

Packs are written in order, shard by shard, beside the output (`OutputFolder`); a run that is
killed leaves its finished shards to the next one of the same job. docs/energon-and-tars.md has the
layout.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packidx import digests
from packidx.errors import OptionError
from packidx.export.outputs import open_exported, packs_in_order
from packidx.export.packed_record import BLOCK, TOTALS, PackMembers, pack_members
from packidx.format.outputs import ExportedTar, WdsManifest
from packidx.index import Index
from packidx.io import files
from packidx.io.output_folder import OutputFolder, replacing
from packidx.io.own_files import Kind
from packidx.io.sizes import parse_size
from packidx.records.fetch import Fetcher
from packidx.run import open_workers
from packidx.run.workers import Progress, Workers
from packidx.software import software

KIND = Kind(
    what="folder of packs as tars",
    manifest=".packidx.json",
    format="packidx-wds",
    names=lambda stated: [shard["path"] for shard in stated["shards"]],
)
VERSION = 1
MAX_COUNT = 10_000
MAX_SIZE = "1GB"

_PACKS_PER_PROCESS = 16
"""Fewer are read before another process has started."""


@dataclass(frozen=True)
class WdsSummary:
    """The contents of an export."""

    path: str
    snapshot_id: str
    num_packs: int
    num_samples: int
    num_tokens: int
    num_media: int
    num_shards: int
    num_bytes: int
    num_kept: int
    """Samples that ``texts`` does not say all of: their messages are under ``_meta``."""
    num_shards_taken_over: int
    """Shards that an earlier run had finished."""
    seconds: float


def export_wds(
    index: str | Path | Index,
    output: str | os.PathLike[str],
    *,
    max_count: int = MAX_COUNT,
    max_size: str | int = MAX_SIZE,
    roots: Mapping[str, str] | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> WdsSummary:
    """Write every pack, media included, as a sample of WebDataset tars.

    Packs stand in the order of their numbers, which is the schedule's; of a plan of several epochs,
    one epoch's behind the other's. The bytes do not depend on `workers`.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        output: a folder, or a URL of one; one that this has written is replaced as a whole.
        max_count: packs of a shard.
        max_size: bytes of a shard, or text like ``1GB``; a pack that is larger has its own.
        roots: old prefix -> new prefix of shard and media paths.
        workers: processes that read; the CPUs that this process may use by default.
        engine: ``'local'`` or ``'ray'``, as for `packidx.estimate_lengths`: who reads. The bytes
            are the same.
        progress: called with how far the work is.

    Raises:
        OptionError: an option or `output` cannot be used, or the plan is of pieces of samples or of
            samples that a transform changes: neither is a record.
        SourceError: a sample cannot be read; the text names its pack, key and shard.
        FormatError: the index is damaged.
    """
    begun = time.monotonic()
    max_bytes = parse_size(str(max_size))
    if not max_bytes:
        raise OptionError(f"max-size is {max_size!r}: say it like {MAX_SIZE}")
    if max_count < 1:
        raise OptionError(f"max-count is {max_count}: give a number from 1 on")
    output = os.fspath(output)
    opened = open_exported(index, output, KIND, roots)
    _check_whole(opened)
    readers = open_workers(engine, workers, most=opened.num_packs // _PACKS_PER_PROCESS)
    options = {"max_count": max_count, "max_bytes": max_bytes}
    head = {"format": KIND.format, "version": VERSION, "snapshot_id": opened.id, "options": options}
    identity = digests.digest(digests.canonical_json({**head, "software": software()}))
    uploaded = None if progress is None else functools.partial(progress, "files")
    with replacing(output, KIND, identity, uploaded) as built, readers:
        finished = _taken_over(built)
        built.keep({tar.path for tar, _ in finished})
        taken_over = len(finished)
        finished += _written(opened, built, finished, readers, progress, max_count, max_bytes)
        tars = [tar for tar, _ in finished]
        totals: dict[str, Any] = {n: sum(own[n] for _, own in finished) for n in TOTALS}
        manifest = WdsManifest(
            snapshot_id=opened.id, options=options, **totals, shards=(*tars,), software=software()
        )
        files.write_json(os.path.join(built.table, KIND.manifest), manifest.to_json())
    return WdsSummary(
        path=output,
        snapshot_id=opened.id,
        num_shards=len(tars),
        num_bytes=sum(tar.bytes for tar in tars),
        num_shards_taken_over=taken_over,
        seconds=time.monotonic() - begun,
        **totals,
    )


def _reader(index: Index) -> tuple[Index, Fetcher]:
    return index, Fetcher(index)


def _read(packs: range, reader: tuple[Index, Fetcher]) -> PackMembers:
    index, fetcher = reader
    key = f"pack{packs.start:0{max(6, len(str(index.num_packs - 1)))}d}"
    return pack_members(index.pack(packs.start), fetcher, key)


Finished = tuple[ExportedTar, dict[str, int]]
"""A tar on disk, and what it holds, by `TOTALS`."""


def _written(
    index: Index,
    output: OutputFolder,
    before: Sequence[Finished],
    readers: Workers,
    progress: Progress | None,
    max_count: int,
    max_bytes: int,
) -> Iterator[Finished]:
    """Write all packs that no tar of `before` holds; a tar is full when the next pack would be over
    its bounds.

    Raises:
        SourceError: a sample cannot be read, or a process died.
        FormatError: the index is damaged.
    """
    first, number = sum(tar.num_packs for tar, _ in before), len(before)
    setup = functools.partial(_reader, index)
    cure = "use fewer workers; what is written is kept"
    packs = packs_in_order(index, _read, setup, readers, progress, first=first, cure=cure)
    with contextlib.ExitStack() as opened:
        tar: _Tar | None = None
        for at, pack in packs:
            if tar is not None and (
                tar.totals["num_packs"] == max_count
                or tar.nbytes + len(pack.data) + len(_END) > max_bytes
            ):
                yield tar.finish(output)
                tar, number = None, number + 1
            if tar is None:
                tar = _Tar(output.table, number, at.start)
                opened.callback(tar.file.close)
            tar.add(pack)
        if tar is not None:
            yield tar.finish(output)


def _check_whole(index: Index) -> None:
    """Raise an OptionError where the plan is of pieces of samples."""
    if (shown := _piece(index)) is not None:
        raise OptionError(
            f"{index.path}@{index.id[:12]} has pieces of samples ({shown}), and a tar holds whole "
            "records: plan with --on-long drop, or read this one with packidx.torch.PackedDataset"
        )


def _piece(index: Index) -> str | None:
    """Return what shows that the plan cuts samples, or None."""
    cut = index.snapshot.result.num_tokens_cut
    options = index.snapshot.options
    if cut:
        return f"{cut} tokens are cut off by --on-long truncate"
    if options.on_long == "split" and options.continues:
        return "it continues a plan with --on-long split"
    for number in range(len(index.snapshot.windows)):
        rows = index.window("samples", number, ["key", "piece", "token_start"])
        for key, *piece in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if any(piece):
                return f"sample {key!r} is split"
    return None


_END = bytes(2 * BLOCK)
"""What a tar ends with (POSIX.1-2017, pax, ustar interchange format)."""
_BUFFER = 1 << 20


class _Tar:
    """A tar that is being written.

    Attributes:
        totals: what it holds, by `TOTALS`.
        nbytes: of it so far.
    """

    def __init__(self, folder: str, number: int, first_pack: int) -> None:
        self.name, self._folder, self._first_pack = _name(number), folder, first_pack
        self.totals = dict.fromkeys(TOTALS, 0)
        self.nbytes = 0
        self.file = open(os.path.join(folder, f".{self.name}.tar"), "wb", buffering=_BUFFER)  # noqa: SIM115
        self._sha256 = hashlib.sha256()

    def add(self, pack: PackMembers) -> None:
        """Write the next pack.

        Raises:
            OSError: it cannot be written.
        """
        self._write(pack.data)
        self.totals = {name: total + pack.totals[name] for name, total in self.totals.items()}

    def finish(self, output: OutputFolder) -> Finished:
        """Write its end: it is on disk, then its note.

        Raises:
            OSError: it cannot be written.
        """
        self._write(_END)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        path = os.path.join(self._folder, f"{self.name}.tar")
        os.chmod(self.file.name, 0o644)
        os.replace(self.file.name, path)
        files.fsync_path(self._folder)
        tar = ExportedTar(
            path=f"{self.name}.tar",
            bytes=self.nbytes,
            sha256=self._sha256.hexdigest(),
            first_pack=self._first_pack,
            num_packs=self.totals["num_packs"],
        )
        note = {"tar": tar.to_json(), "totals": self.totals, "inode": os.stat(path).st_ino}
        output.finish(self.name, note)
        return tar, self.totals

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self._sha256.update(data)
        self.nbytes += len(data)


def _name(number: int) -> str:
    return f"packs-{number:06d}"


def _taken_over(output: OutputFolder) -> list[Finished]:
    """The tars that an earlier run of this very job has finished, from the first one on."""
    tars: list[Finished] = []
    while (note := output.finished(_name(len(tars)))) is not None:
        tar = ExportedTar(**note["tar"])
        path = os.path.join(output.table, tar.path)
        # A run that was killed right at its end leaves the tars that were there before it.
        if not os.path.exists(path) or os.stat(path).st_ino != note["inode"]:
            break
        tars.append((tar, note["totals"]))
    return tars
