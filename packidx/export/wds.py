"""`export wds`: a snapshot's packs as the samples of new tars, with their media in them.

Packs are written in order, shard by shard, beside the output (`OutputFolder`).
docs/energon-and-tars.md has the layout.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
)
VERSION = 1
MAX_COUNT = 10_000
MAX_SIZE = "1GB"
ENDINGS = (".tar", ".tar.idx")
"""Of a tar, and of where each of its packs begins."""

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
    """Write every pack, media included, as a sample of WebDataset tars that Energon can read.

    Packs stand in the order of their numbers, which is the schedule's. The bytes do not depend
    on `workers`.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        output: a folder, or a URL of one, that is not there yet, or empty.
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
        built.keep(())
        finished = [*_written(opened, built, readers, progress, options)]
        tars = [each.tar for each in finished]
        totals: dict[str, Any] = {n: sum(each.totals[n] for each in finished) for n in TOTALS}
        entries = (json.loads(Path(each.entries).read_bytes()) for each in finished)
        write_nv_meta(built.table, tars, entries, identity)
        manifest = WdsManifest(
            snapshot_id=opened.id, options=options, **totals, shards=(*tars,), software=software()
        )
        files.write_json(os.path.join(built.table, KIND.manifest), manifest.to_json())
    return WdsSummary(
        path=output,
        snapshot_id=opened.id,
        num_shards=len(tars),
        num_bytes=sum(tar.bytes for tar in tars),
        seconds=time.monotonic() - begun,
        **totals,
    )


def _reader(index: Index) -> tuple[Index, Fetcher]:
    return index, Fetcher(index)


def _read(packs: range, reader: tuple[Index, Fetcher]) -> PackMembers:
    index, fetcher = reader
    key = f"pack{packs.start:0{max(6, len(str(index.num_packs - 1)))}d}"
    return pack_members(index.pack(packs.start), fetcher, key)


@dataclass(frozen=True, slots=True)
class _Finished:
    """A tar on disk, and what it holds."""

    tar: ExportedTar
    totals: dict[str, int]
    entries: str
    """File that says where each pack begins, as JSON: in memory it would be much."""


def _written(
    index: Index,
    output: OutputFolder,
    readers: Workers,
    progress: Progress | None,
    options: Mapping[str, int],
) -> Iterator[_Finished]:
    """Write all packs; a tar is full when the next pack would be over its bounds.

    Raises:
        SourceError: a sample cannot be read, or a process died.
        FormatError: the index is damaged.
    """
    number, setup = 0, functools.partial(_reader, index)
    packs = packs_in_order(index, _read, setup, readers, progress)
    with contextlib.ExitStack() as opened:
        tar: _Tar | None = None
        for at, pack in packs:
            if tar is not None and (
                len(tar.entries) == options["max_count"]
                or tar.nbytes + len(pack.data) + len(_END) > options["max_bytes"]
            ):
                yield tar.finish(output)
                tar, number = None, number + 1
            if tar is None:
                tar = _Tar(output.table, number, at.start)
                opened.callback(tar.close)
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


FOLDER = ".nv-meta"
NAMES: tuple[str, ...] = (
    ".info.json",
    ".info.yaml",
    "split.yaml",
    "dataset.yaml",
    "index.sqlite",
    "index.uuid",
)
"""All files of the folder."""

SAMPLE_TYPE = "packed_multi_mix_qa"
"""Subflavor by which a cooker knows the samples (LoongForge's name)."""

_DATASET = f"""\
__module__: megatron.energon
__class__: CrudeWebdataset
subflavors:
  sample_type: {SAMPLE_TYPE}
"""

_TABLES = (
    """CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
       sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)""",
    """CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
       content_byte_offset INTEGER, content_byte_size INTEGER)""",
)
_INDICES = (
    "idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, "
    "content_byte_offset, content_byte_size)",
)


def write_nv_meta(
    folder: str,
    shards: Sequence[ExportedTar],
    entries: Iterable[Sequence[IndexEntry]],
    identity: str,
) -> None:
    """Write the folder ``.nv-meta`` beside the tars.

    Args:
        entries: the samples of each shard, in the same order.
        identity: digest of everything that decides the tars; ``index.uuid`` follows from it.

    Raises:
        OSError: it cannot be written.
    """
    meta = os.path.join(folder, FOLDER)
    os.makedirs(meta, exist_ok=True)
    counts = {"shard_counts": {shard.path: shard.num_packs for shard in shards}}
    texts = {
        ".info.json": json.dumps(counts, indent=2) + "\n",
        # JSON is YAML; a line a shard, so that diff and grep serve.
        ".info.yaml": "shard_counts:\n" + "".join(f"  {s.path}: {s.num_packs}\n" for s in shards),
        "split.yaml": f"split_parts:\n  train:\n  - {_range(shards)}\n  val: []\n  test: []\n"
        "exclude: []\n",
        "dataset.yaml": _DATASET,
        "index.uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"packidx:{identity}")),
    }
    for name, text in texts.items():
        files.write_atomic(os.path.join(meta, name), text.encode())
    _write_index(os.path.join(meta, "index.sqlite"), entries)
    files.fsync_path(meta)


def _range(shards: Sequence[ExportedTar]) -> str:
    """The shards' names in braces, as Energon expands them; in quotes, for YAML."""
    first, last = (shard.path.removesuffix(".tar") for shard in (shards[0], shards[-1]))
    stem, _, low = first.rpartition("-")
    if first == last:
        return f"{first}.tar"
    return f'"{stem}-{{{low}..{last.rpartition("-")[2]}}}.tar"'


def _write_index(path: str, entries: Iterable[Sequence[IndexEntry]]) -> None:
    """Write where each sample and each part of it is in the tars."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")  # it is written anew after a crash
        for table in _TABLES:
            database.execute(table)
        for number, samples in enumerate(entries):
            database.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                ((number, key, at, *span) for at, (key, *span, _) in enumerate(samples)),
            )
            database.executemany(
                "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                (
                    (number, at, *part)
                    for at, (_, _, _, parts) in enumerate(samples)
                    for part in parts
                ),
            )
        for index in _INDICES:
            database.execute(f"CREATE INDEX {index}")
        database.commit()
    os.chmod(path, 0o644)
    files.fsync_path(path)


_END = bytes(2 * BLOCK)
"""What a tar ends with (POSIX.1-2017, pax, ustar interchange format)."""
_BUFFER = 1 << 20

IndexEntry = tuple[str, int, int, list[tuple[str, int, int]]]
"""A sample: key, first byte and bytes in its tar, and its parts as (name, first byte, bytes)."""


class _Tar:
    """A tar that is being written.

    Attributes:
        entries: its packs so far.
        nbytes: of it so far.
    """

    def __init__(self, folder: str, number: int, first_pack: int) -> None:
        self._name, self._folder, self._first_pack = _name(number), folder, first_pack
        self.entries: list[IndexEntry] = []
        self.nbytes = 0
        path = os.path.join(folder, f".{self._name}{ENDINGS[0]}")
        self.file = open(path, "wb", buffering=_BUFFER)  # noqa: SIM115
        self._totals = dict.fromkeys(TOTALS, 0)
        self._sha256 = hashlib.sha256()

    def add(self, pack: PackMembers) -> None:
        """Write the next pack.

        Raises:
            OSError: it cannot be written.
        """
        parts = [(name, self.nbytes + at, nbytes) for name, at, nbytes in pack.parts]
        self.entries.append((pack.key, self.nbytes, len(pack.data), parts))
        self._write(pack.data)
        self._totals = {name: total + pack.totals[name] for name, total in self._totals.items()}

    def finish(self, output: OutputFolder) -> _Finished:
        """Write its end: it and its ``.idx`` are on disk then.

        Raises:
            OSError: it cannot be written.
        """
        # The last one is where the tar's end begins.
        offsets = np.array([*(start for _, start, *_ in self.entries), self.nbytes], "<u8")
        self._write(_END)
        self.close()
        files.fsync_path(self.file.name)
        path, idx = (os.path.join(self._folder, f"{self._name}{ending}") for ending in ENDINGS)
        files.write_atomic(idx, offsets.tobytes())
        os.chmod(self.file.name, 0o644)
        os.replace(self.file.name, path)
        files.fsync_path(self._folder)
        tar = ExportedTar(
            path=os.path.basename(path),
            bytes=self.nbytes,
            sha256=self._sha256.hexdigest(),
            first_pack=self._first_pack,
            num_packs=len(self.entries),
        )
        entries = os.path.join(output.scratch("entries"), f"{self._name}.json")
        Path(entries).write_text(json.dumps(self.entries))
        return _Finished(tar, self._totals, entries)

    def close(self) -> None:
        """Close the file; twice is no error."""
        with files.naming(self.file.name):
            self.file.close()

    def _write(self, data: bytes) -> None:
        with files.naming(self.file.name):
            self.file.write(data)
        self._sha256.update(data)
        self.nbytes += len(data)


def _name(number: int) -> str:
    return f"packs-{number:06d}"
