"""`export wds`: a snapshot's packs as the samples of new tars, with their media in them.

Packs are written in order, tar by tar, into a folder beside the output that takes its place when
it is whole; an export that was killed starts again. docs/energon-and-tars.md has the layout.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from tarfile import BLOCKSIZE, RECORDSIZE
from typing import Any

from packidx import digests
from packidx.errors import OptionError, PackidxError
from packidx.export.energon import prepare_command
from packidx.export.outputs import describe_files, labels_of, open_exported, packs_in_order
from packidx.export.packed_record import pack_members
from packidx.index import Index
from packidx.io import files
from packidx.io.files import parse_size
from packidx.io.output_folder import Kind, replace_output
from packidx.processor.counter import ConversationCounter
from packidx.records.fetch import Fetcher
from packidx.records.sources.folders import ENERGON as FOLDER
from packidx.run.workers import Progress, open_workers
from packidx.software import list_versions

KIND = Kind(
    what="folder of packs as tars",
    manifest=".packidx.json",
    format="packidx-wds",
)
VERSION = 1
MAX_SIZE = "1GB"

_PACKS_PER_PROCESS = 16
"""Fewer are read before another process has started."""

SAMPLE_TYPE = "packed_multi_mix_qa"
"""Subflavor by which a cooker knows the samples (LoongForge's name)."""

_DATASET = f"""\
__module__: megatron.energon
__class__: CrudeWebdataset
subflavors:
  sample_type: {SAMPLE_TYPE}
"""

_PREPARE = ("--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml")


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
    prepare: str
    """Command to run before Energon reads the tars."""
    warnings: list[str]
    """A sentence for each fact that the tars lack, or that was not compared with the plan."""
    seconds: float


def export_wds(
    index: str | Path | Index,
    output: str | os.PathLike[str],
    *,
    max_size: str | int = MAX_SIZE,
    roots: Mapping[str, str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> WdsSummary:
    """Write every pack, media included, as a sample of WebDataset tars that Energon can read.

    Packs stand in the order of their numbers, which is the schedule's. The bytes do not depend
    on `workers`.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        output: a folder, or a URL of one, that is not there yet, or empty.
        max_size: bytes of a shard, or text like ``1GB``; a pack that is larger has its own.
        roots: old prefix -> new prefix of shard and media paths.
        workers: processes that read; the CPUs that this process may use by default.
        progress: called with how far the work is.

    Raises:
        OptionError: an option or `output` cannot be used, or the plan is of pieces of samples or of
            samples that a transform changes: neither is a record.
        SourceError: a sample cannot be read; the text names its pack, key and shard.
        ChangedSource: a shard or a medium is not the one that was counted.
        FormatError: the index is damaged.
    """
    begun = time.monotonic()
    max_bytes = parse_size(str(max_size))
    if not max_bytes:
        raise OptionError(f"max-size is {max_size!r}: say it like {MAX_SIZE}")
    output = os.fspath(output)
    opened = open_exported(index, output, KIND, roots)
    windows = range(len(opened.snapshot.windows))
    starts = (opened.window("samples", n, ["token_start"]).column(0).to_numpy() for n in windows)
    if opened.snapshot.result.num_tokens_cut or any(start.any() for start in starts):
        raise OptionError(
            f"{opened.path}@{opened.id[:12]} cuts samples (--on-long), and a tar holds whole "
            "records: plan with --on-long drop, or read this one with packidx.torch.PackedDataset"
        )
    counter, uncompared = _media_counter(opened)
    warnings = [] if uncompared is None else [uncompared]
    if not labels_of(opened).end_of_turn:
        warnings.append(
            "the plan does not train on the token that ends a turn (no-eot), which the tars cannot "
            "say: let the trainer leave it out"
        )
    readers = open_workers("local", workers, most=opened.num_packs // _PACKS_PER_PROCESS)
    options = {"max_bytes": max_bytes}
    head = {"format": KIND.format, "version": VERSION, "snapshot_id": opened.id, "options": options}
    identity = digests.digest_parts(digests.canonical_json({**head, "software": list_versions()}))
    uploaded = None if progress is None else functools.partial(progress, "files")
    with replace_output(output, KIND, identity, uploaded) as built, readers:
        files.remove_tree(built.table)  # what a run that was killed has left
        os.makedirs(os.path.join(built.table, FOLDER))
        setup = functools.partial(_open_reader, opened, counter)
        packs = packs_in_order(opened, _read_packs, setup, readers, progress)
        digits = max(6, len(str(opened.num_packs - 1)))
        tars, num_media = _write_tars(built.table, _assign_tars(packs, **options), digits)
        result = opened.snapshot.result
        totals = {"num_packs": result.num_packs, "num_samples": result.num_pieces}
        totals |= {"num_tokens": result.num_tokens, "num_media": num_media}
        files.write_atomic(os.path.join(built.table, FOLDER, "dataset.yaml"), _DATASET.encode())
        manifest = {**head, **totals, "shards": tars, "software": list_versions()}
        files.write_json(os.path.join(built.table, KIND.manifest), manifest)
    return WdsSummary(
        path=output,
        snapshot_id=opened.id,
        num_shards=len(tars),
        num_bytes=sum(tar["bytes"] for tar in tars),
        prepare=prepare_command(output, *_PREPARE),
        warnings=warnings,
        seconds=time.monotonic() - begun,
        **totals,
    )


_Reader = tuple[Index, Fetcher, ConversationCounter | None]


def _open_reader(index: Index, counter: ConversationCounter | None) -> _Reader:
    return index, Fetcher(index), counter


def _read_packs(packs: range, reader: _Reader) -> dict[str, bytes]:
    index, fetcher, counter = reader
    return pack_members(index.pack(packs.start), fetcher, counter)


def _media_counter(index: Index) -> tuple[ConversationCounter | None, str | None]:
    """Return what counts media as they were counted for a plan, or why there is none."""
    from packidx.encode.loading import load_processor

    encoder, counts = index.snapshot.lengths.encoder, index.packs(["num_images", "num_videos"])
    if encoder is None or encoder.name is None or encoder.settings is None:
        return None, None  # no sizes were planned
    if not any(any(column.to_pylist()) for column in counts.columns):
        return None, None
    try:
        files = load_processor(encoder.name, labels_of(index), encoder.overrides)
        if files.family is not None and files.fingerprint() == encoder.fingerprint:
            return ConversationCounter(files), None
        reason = "is of no known family" if files.family is None else "is another one here"
    except (PackidxError, OSError) as error:
        reason = f"cannot be loaded: {error}"
    return None, f"the sizes of media were not compared with the plan: {encoder.name} {reason}"


def _assign_tars(
    packs: Iterable[tuple[range, dict[str, bytes]]], max_bytes: int
) -> Iterator[tuple[int, int, dict[str, bytes]]]:
    """Yield the number of its tar, its own number and the members of each pack; a tar is full when
    the next pack would exceed `max_bytes`."""
    tar = nbytes = 0
    for at, pack in packs:
        more = sum(BLOCKSIZE + _round_up(len(data), BLOCKSIZE) for data in pack.values())
        is_over = _round_up(nbytes + more + 2 * BLOCKSIZE, RECORDSIZE) > max_bytes
        if nbytes and is_over:
            tar, nbytes = tar + 1, 0
        nbytes += more
        yield tar, at.start, pack


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def _write_tars(
    folder: str, packs: Iterable[tuple[int, int, dict[str, bytes]]], digits: int
) -> tuple[list[dict[str, Any]], int]:
    """Write packs into tars; each gets its name when it is complete.

    Returns:
        The tars, and how many media are in them.

    Raises:
        SourceError: a sample cannot be read, or a process died.
        FormatError: the index is damaged.
    """
    from webdataset import TarWriter  # it loads torch where that is installed

    tars: list[dict[str, Any]] = []
    num_media = 0
    plain: dict[str, Any] = {"encoder": False, "user": "", "group": "", "mode": 0o644, "mtime": 0}
    for number, members in itertools.groupby(packs, itemgetter(0)):
        name, ids = f"packs-{number:06d}.tar", []
        path = os.path.join(folder, name)
        with (
            files.name_in_errors(path),
            open(f"{path}.part", "wb") as file,
            TarWriter(file, **plain) as tar,
        ):
            for _, pack_id, pack in members:
                tar.write({"__key__": f"pack{pack_id:0{digits}d}", **pack})
                num_media += len(pack) - 1  # but for its JSON
                ids.append(pack_id)
        os.rename(f"{path}.part", path)
        [written] = describe_files(folder, [name])
        tars.append({**written, "first_pack": ids[0], "num_packs": len(ids)})
    return tars, num_media
