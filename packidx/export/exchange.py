"""Packs in the files of other trainers, which read no index.

=========  =====================================================  ================================
layout     files                                                  what is in them
=========  =====================================================  ================================
xtuner     boundaries.npy, samples.npy, paths.json, order.npy     which records make a pack
megatron   packs.bin, packs.idx                                   a pack's tokens, one sequence
bridge     packs.idx.parquet                                      tokens, loss mask, sample starts
=========  =====================================================  ================================

Each says in its manifest, and to whoever exports, what of the packs it does not carry.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from packidx import digests
from packidx.arrays import Int64s
from packidx.errors import MismatchError, OptionError
from packidx.export.outputs import described, open_exported
from packidx.format.outputs import ExchangeManifest
from packidx.format.parquet import open_writer
from packidx.index import Index
from packidx.index.order import Dealing, Epochs, check_global_batch
from packidx.io import files
from packidx.io.copies import StoredFile, local_copy
from packidx.io.output_folder import replacing
from packidx.io.own_files import Kind
from packidx.records.containers.base import file_blocks, file_version
from packidx.run.workers import Progress
from packidx.words import number_of

KIND = Kind(
    what="folder of packs for another trainer",
    manifest=".packidx.json",
    format="packidx-exchange",
    names=lambda stated: [file["path"] for file in stated["files"]],
)
VERSION = 1


def export_xtuner(
    index: str | os.PathLike[str] | Index,
    output: str | os.PathLike[str],
    global_batch: int,
    *,
    epochs: int = 1,
    seed: int = 0,
    roots: Mapping[str, str] | None = None,
) -> ExchangeManifest:
    """Write a snapshot as the preset of XTuner v1 (``pack_level="preset"``): no record is parsed.

    ``order.npy`` has the packs of all epochs in the order of training, without the incomplete step
    at the end of each; a rank r of w trains on every w-th from r on, as with a `PackSampler`.
    Returns the manifest, whose `lost` says what of the packs is not in it.

    Args:
        index: the index, or ``INDEX@ID``.
        output: a folder; an export that is there is replaced.
        global_batch: packs of an optimizer step.
        epochs: of the run.
        seed: of the order.
        roots: ``{old: new}`` path prefixes; XTuner's data sets must have the paths that result.

    Raises:
        OptionError: the samples are not lines of JSON Lines files, or there are blank lines among
            these; their lengths are guesses, or the plan was made with ``--shift``; or an option or
            `output` cannot be used.
        PackidxError: as of `packidx.export.outputs.open_exported`.
    """
    opened = open_exported(index, os.fspath(output), KIND, roots)
    name = f"{opened.path}@{opened.id[:12]}"
    own_epochs = Epochs.of(opened.snapshot)
    check_global_batch(global_batch, 1, own_epochs, name)
    if epochs < 1:
        raise OptionError(f"epochs is {epochs}: it must be at least 1")
    if opened.snapshot.options.shift:
        raise OptionError(f"{name} was made with --shift, and XTuner shifts: plan without")
    if others := {shard.container for shard in opened.snapshot.shards} - {"jsonl"}:
        raise OptionError(
            f"{name} has samples in {', '.join(sorted(others))}, and XTuner numbers lines of JSON"
            " Lines: write the records so, estimate and plan again"
        )
    if not opened.snapshot.shards or opened.snapshot.lengths.methods.get("heuristic"):
        raise OptionError(
            f"{name} was planned from guessed or bare lengths, by which XTuner would cut samples:"
            " estimate with --processor and plan again"
        )

    paths = [opened.resolve(shard.uri) for shard in opened.snapshot.shards]
    for path, shard in zip(paths, opened.snapshot.shards, strict=True):
        with local_copy(StoredFile(path)) as copy:
            num_lines = _num_lines(copy)
        if num_lines != shard.rows:
            raise OptionError(
                f"{path} has blank lines, which XTuner counts and a plan does not: remove them,"
                " estimate and plan again"
            )

    def write(folder: str) -> None:
        files.write_json(os.path.join(folder, "paths.json"), paths)
        _write_preset(folder, opened)
        dealings = [
            Dealing(own_epochs.order(opened.id, seed, epoch), global_batch)
            for epoch in range(epochs)
        ]
        order = np.concatenate([dealing.packs(0, dealing.end) for dealing in dealings])
        np.save(os.path.join(folder, "order.npy"), order)

    lost = _unsaid(opened)
    if num_media := _num_with_media(opened):
        lost.append(
            f"XTuner's preset keeps tokens and labels of a sample alone, so"
            f" {number_of(num_media, 'pack')} would lose their images, videos and sounds"
        )
    lost.append(
        "XTuner tokenizes for itself and cuts a sample that it finds longer than planned: compare"
        " its counts with the plan's"
    )
    return _export(opened, output, "xtuner", write, lost, [global_batch, epochs, seed])


def _num_lines(path: str) -> int:
    """Lines of a file, blank ones too."""
    newlines, last = 0, b"\n"
    for block in file_blocks(path, 0, file_version(path)[0]):
        newlines, last = newlines + block.count(b"\n"), block[-1:]
    return newlines + (last != b"\n")


def _write_preset(folder: str, index: Index) -> None:
    """The packs as rows of (path, line, -1, -1, first token, end), and where each begins."""
    result, columns = index.snapshot.result, ["shard", "row", "token_start", "length"]
    opened = {
        name: np.lib.format.open_memmap(os.path.join(folder, f"{name}.npy"), "w+", np.int64, shape)
        for name, shape in (
            ("samples", (result.num_pieces, 6)),
            ("boundaries", (index.num_packs + 1,)),
        )
    }
    row = pack = 0
    for window in range(len(index.snapshot.windows)):
        table = index.window("samples", window, columns)
        shard, line, start, length = (column.to_numpy() for column in table.columns)
        rows = opened["samples"][row : row + len(table)]
        rows[:] = np.stack([shard, line, line * 0 - 1, line * 0 - 1, start, start + length], axis=1)
        counts = index.window("packs", window, ["num_samples"]).column(0).to_numpy()
        opened["boundaries"][pack + 1 : pack + 1 + len(counts)] = row + np.cumsum(counts)
        row, pack = row + len(table), pack + len(counts)
    for array in opened.values():
        array.flush()


def export_tokens(
    index: str | os.PathLike[str] | Index,
    packs: Iterable[Any],
    output: str | os.PathLike[str],
    layout: Literal["megatron", "bridge"],
    *,
    pad_token_id: int = 0,
    roots: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ExchangeManifest:
    """Write the tokens of a snapshot's packs, text alone, in the order of the plan; returns the
    manifest, whose `lost` says what of the packs is not in it.

    Args:
        index: the index, or ``INDEX@ID``.
        packs: all of its packs in order, as a `packidx.torch.PackedDataset` reads them, or a
            DataLoader of it with ``batch_size=None`` and workers.
        output: a folder; an export that is there is replaced.
        layout: ``'megatron'``, a sequence of int32 per pack, padded at its end to the capacity:
            so Megatron's GPT data set, which cuts a stream of tokens every `capacity`, cuts
            between packs. ``'bridge'``, Megatron-Bridge's packed Parquet.
        pad_token_id: what ``'megatron'`` pads with.
        roots: ``{old: new}`` path prefixes, for the check that shards are as they were counted.
        progress: called with how far the work is: ``('packs', done, total)``.

    Raises:
        OptionError: the plan has media, or was made with ``--shift``.
        MismatchError: `packs` are not all of the plan's, one has other tokens than planned, or a
            label is not the token itself.
        PackidxError: as of `packidx.export.outputs.open_exported` and of reading packs.
    """
    opened = open_exported(index, os.fspath(output), KIND, roots)
    name = f"{opened.path}@{opened.id[:12]}"
    if num_media := _num_with_media(opened):
        raise OptionError(
            f"{number_of(num_media, 'pack')} of {name} have media, which a file of tokens cannot"
            " hold: plan the sources of text alone"
        )
    if opened.snapshot.options.shift:
        raise OptionError(f"{name} was made with --shift, and its reader shifts: plan without")
    read = _read(opened, packs, progress)

    def write(folder: str) -> None:
        if layout == "bridge":
            _write_bridge(os.path.join(folder, "packs.idx.parquet"), read)
        else:
            _write_megatron(os.path.join(folder, "packs"), read, opened.capacity, pad_token_id)

    lost = [*_unsaid(opened), "the order of training is the reader's own"]
    if layout == "megatron":
        lost += [
            "the loss is over every token: labels are not in these files",
            "samples of a pack see each other: these files do not say where one begins",
        ]
    return _export(opened, output, layout, write, lost, [pad_token_id])


Read = Iterator[tuple[list[Int64s], list[Int64s]]]
"""Of each pack the ids and the labels of its samples."""


def _read(index: Index, packs: Iterable[Any], progress: Progress | None) -> Read:
    number = 0
    planned = index.packs(["length"]).column(0).to_pylist()
    for pack in packs:
        if pack.pack_id != number or number == len(planned):
            number = -1
            break
        ids, labels = (
            [np.asarray(sample[key], np.int64) for sample in pack.samples]
            for key in ("input_ids", "labels")
        )
        if (tokens := sum(map(len, ids))) != planned[number]:
            raise MismatchError(
                f"pack {number} has {tokens} tokens, planned as {planned[number]}: leave nothing"
                ' out and cut nothing (on_bad="error", on_mismatch="error")'
            )
        for own, wanted in zip(ids, labels, strict=True):
            if np.any((wanted != own) & (wanted >= 0)):
                raise MismatchError(
                    f"pack {pack.pack_id} has labels that are not its tokens, and the reader makes"
                    " them of the tokens: read this plan with packidx.torch.PackedDataset"
                )
        yield ids, labels
        number += 1
        if progress is not None:
            progress("packs", number, len(planned))
    if number != len(planned):
        raise MismatchError(
            f"the packs given are not the {len(planned)} of {index.path} in order: give"
            " packidx.torch.PackedDataset(index, encode)"
        )


def _write_megatron(prefix: str, packs: Read, capacity: int, pad_token_id: int) -> None:
    """Megatron's indexed data set (megatron/core/datasets/indexed_dataset.py): the tokens, and
    magic, version 1, code of int32, numbers of sequences and of documents' bounds, then lengths
    (int32), first bytes (int64) and documents (int64) of a pack each."""
    num_packs = 0
    with open(f"{prefix}.bin", "wb") as file:
        for ids, _ in packs:
            row = np.full(capacity, pad_token_id, "<i4")
            tokens = np.concatenate(ids)
            row[: len(tokens)] = tokens
            file.write(row.tobytes())
            num_packs += 1
    numbers = np.arange(num_packs + 1, dtype="<i8")
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, num_packs, num_packs + 1))
        file.write(np.full(num_packs, capacity, "<i4").tobytes())
        file.write((numbers[:-1] * capacity * 4).tobytes() + numbers.tobytes())


_BRIDGE = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("seq_start_id", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
_ROW_GROUP = 64  # packs; the reader decodes a row group to read one of them


def _write_bridge(path: str, packs: Read) -> None:
    """Megatron-Bridge's Parquet: a row per pack. It predicts token t + 1 at t, leaves out the last
    token of each sample, and counts what `loss_mask` says at t."""
    with open_writer(path, _BRIDGE) as writer:
        rows: list[dict[str, Any]] = []
        for ids, labels in packs:
            masks = [np.append(own[1:] >= 0, False) for own in labels]
            starts = [0, *accumulate(map(len, ids))][:-1]
            tokens, mask = np.concatenate(ids), np.concatenate(masks).astype(np.int8)
            rows.append({"input_ids": tokens, "seq_start_id": starts, "loss_mask": mask})
            if len(rows) == _ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(rows, _BRIDGE))
                rows = []
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, _BRIDGE))


def _num_with_media(index: Index) -> int:
    """Packs that have images, videos or sounds."""
    columns = ["num_images", "num_videos", "audio_tokens"]
    counts = [column.fill_null(0).to_numpy() for column in index.packs(columns).columns]
    return int(np.count_nonzero(sum(counts)))


def _unsaid(index: Index) -> list[str]:
    options = index.snapshot.options
    if options.align == options.pad_pack_to == 1:
        return []
    return ["the padding of --align and --pad-pack-to is not in it"]


def _export(
    index: Index,
    output: str | os.PathLike[str],
    layout: str,
    write: Callable[[str], None],
    lost: Sequence[str],
    decides: Sequence[Any],
) -> ExchangeManifest:
    """Build the folder, with its manifest, and put it in its place.

    Args:
        write: writes all files but the manifest into a folder.
        decides: what decides the bytes besides snapshot and layout.
    """
    result = index.snapshot.result
    facts = [KIND.format, VERSION, layout, index.id, index.roots, *decides]
    with replacing(os.fspath(output), KIND, digests.digest(digests.canonical_json(facts))) as built:
        write(built.table)
        manifest = ExchangeManifest(
            layout=layout,
            snapshot_id=index.id,
            num_packs=index.num_packs,
            num_samples=result.num_pieces,
            num_tokens=result.num_tokens,
            lost=tuple(lost),
            files=described(built.table, sorted(os.listdir(built.table))),
        )
        files.write_json(os.path.join(built.table, KIND.manifest), manifest.to_json())
    return manifest
