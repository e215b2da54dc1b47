"""`precompute --pixels`: the images of a data set, decoded and resized once for all epochs.

Shards are read twice: to learn which images there are, by the digests of their files' bytes, and
then to make each of them once, wherever it is first. An image that is kept already is not made
again, so that a killed run, or one after data was added, makes what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from packidx.digests import digest, file_digest
from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, FormatError, OptionError
from packidx.estimate.counter import CounterSettings, RecordCounter, ShardContext, raw_records
from packidx.estimate.job import job_shards
from packidx.format.manifest import File, Layout, sealed
from packidx.format.pixels import (
    KEY_BYTES,
    KEYS,
    NAME,
    PIXELS,
    PixelsManifest,
    PixelStore,
    as_keys,
    key_of,
    keys_in,
    keys_table,
    row_of,
)
from packidx.io import files, urls
from packidx.io.own_files import Kind, check_free, made_by_another, read_json_object
from packidx.io.ranges import Extent
from packidx.records.containers.base import RawRecord, RecordRange
from packidx.records.media.images import image_size, open_image, read_image
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot, check_folder, check_remote
from packidx.records.media.references import reference_of
from packidx.records.shards import scan_shards
from packidx.records.sources.find_shards import find_shards
from packidx.run import open_workers
from packidx.run.workers import Progress, num_workers, silent
from packidx.software import software

KIND = Kind(
    what="folder of pixels",
    manifest=NAME,
    format=PixelsManifest.FORMAT,
    names=lambda stated: [
        file["path"] for file in (*stated.get("files", ()), stated.get("keys")) if file
    ],
)
_FILE_BYTES = 256 << 20
"""Of patches, before they are compressed, in one file."""
_BATCH_BYTES = 16 << 20
"""Of compressed ones that are held before they are written."""


@dataclass(frozen=True, kw_only=True)
class KeptSummary:
    """What a folder of pixels holds, and what this run did."""

    path: str
    num_images: int
    """Different ones, in all."""
    num_made: int
    num_references: int
    """To images, in the records."""
    num_unreadable: int
    """Records with an image that cannot be used."""
    nbytes: int
    """Of all files."""
    seconds: float


def keep_pixels(
    sources: Sequence[str] | str,
    output: str | os.PathLike[str],
    processor: str | os.PathLike[str],
    *,
    processor_settings: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    media_root: str | os.PathLike[str] | None = None,
    remote_media: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    ignore: Sequence[str] = (),
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> KeptSummary:
    """Write what a processor of patches (Qwen-VL, GLM-V) makes of the images of `sources`.

    ``ProcessorEncoder(pixel_store=output)`` then decodes no image that is in it. An image's pixels
    are made as a reader makes them, and compared with the processor's as there.

    Args:
        output: a folder of this machine; images that are in it stay, and are not made again.
        processor: folder or hub name of a Hugging Face processor.
        other options: as for `packidx.estimate_lengths`.
        progress: called with how far the work is.

    Raises:
        SourceError: a source, a shard or the processor cannot be used.
        OptionError: an option or `output` cannot be used, its pixels were made with other settings,
            or packidx does not make this processor's pixels.
        MissingExtraError: torch or transformers is missing.
    """
    begun = time.monotonic()
    progress = progress or silent
    output = os.fspath(output)
    if urls.is_url(output):
        raise OptionError(f"{output} is a URL, and pixels are kept on this machine: name a folder")
    settings = CounterSettings(os.fspath(processor), processor_settings or {}, trust_remote_code)
    make = functools.partial(_encoder, settings)
    encoder = make()
    encoder.own_patches()  # before anything is written
    store = _begin(output, encoder)
    root, remote = check_folder(media_root), check_remote(remote_media)
    layout = Layout(columns or {}, tags or {}, delimiter=delimiter, ignore=tuple(ignore))
    given = [sources] if isinstance(sources, str) else [os.fspath(source) for source in sources]
    shards = find_shards(given, layout)
    with files.locked(output) as ours, open_workers(engine, workers) as pool:
        if not ours:
            raise made_by_another(output, KIND.what)
        scans = scan_shards(shards, num_workers(workers), progress)
        own = job_shards(shards, scans, settings, RecordCounter(None), root, remote)
        ranges = [(shard.context, part) for shard in own for part in shard.ranges]
        seen: list[_Seen] = []
        num_records = sum(part.num_records for _, part in ranges)
        for number, found in pool.run(_look, ranges, make, here=lambda: encoder, in_turn=True):
            seen.append(found)
            done = sum(part.num_records for _, part in ranges[: number + 1])
            progress("look", done, num_records)
        tasks = _tasks(output, ranges, seen, store.known())
        to_make, num_made, made = sum(task.num_images for task in tasks), 0, []
        for _, file in pool.run(_write, tasks, make, here=lambda: encoder, in_turn=True):
            made.append(file)
            num_made += file.rows
            progress("images", num_made, to_make)
        manifest = _finish(output, store.manifest, made)
    return KeptSummary(
        path=output,
        num_images=manifest.num_images,
        num_made=num_made,
        num_references=sum(each.num_references for each in seen),
        num_unreadable=sum(each.num_unreadable for each in seen),
        nbytes=sum(file.bytes for file in manifest.files),
        seconds=time.monotonic() - begun,
    )


def _encoder(settings: CounterSettings) -> ProcessorEncoder:
    name, own = settings.processor or "", settings.processor_settings
    remote_code = settings.trust_remote_code
    return ProcessorEncoder(name, settings=own, trust_remote_code=remote_code, pixels="uint8")


def _begin(output: str, encoder: ProcessorEncoder) -> PixelStore:
    """Return the folder's pixels, of these settings; an empty one's manifest is written first, so
    that a killed run's files are known as ours.

    Raises:
        OptionError: it holds something else.
    """
    place = os.path.join(output, NAME)
    is_ours = os.path.isfile(place) and read_json_object(place).get("format") == KIND.format
    if not is_ours:
        check_free(output, KIND)
        os.makedirs(output, exist_ok=True)
        files.write_json(
            place,
            sealed(
                PixelsManifest(settings=encoder.image_settings, software=software(), num_images=0)
            ).to_json(),
        )
    try:
        store = PixelStore(output)
        encoder.check_store(store)
        return store
    except FormatError as error:
        raise OptionError(str(error)) from None


# -- which images there are ------------------------------------------------------------------------

Range = tuple[ShardContext, RecordRange]


class _Seen(NamedTuple):
    """The images of a range, each at its first place.

    Attributes:
        keys: ``[n]``.
        nbytes: int64 ``[n]``: of their patches.
        rows: int64 ``[n]``: of the shard, where they are.
        num_references: to images, repeated ones too.
        num_unreadable: records with an image that cannot be used.
    """

    keys: NDArray[np.bytes_]
    nbytes: NDArray[np.int64]
    rows: NDArray[np.int64]
    num_references: int
    num_unreadable: int


class _Images(MediaOpener):
    """Reads the images of a record, the bytes of their files; videos' frames are left out.

    Args:
        root: where they may lie.

    Attributes:
        read: the bytes of each that could be read, and how errors name it.
    """

    def __init__(self, root: MediaRoot) -> None:
        super().__init__(root)
        self.read: list[tuple[bytes, str | None]] = []

    def entry(self, kind: str, entry: Any, is_part: bool = False) -> Any:
        """See the base."""
        if kind == "image":
            source, label = self._located(reference_of(entry))
            if not isinstance(source, str | bytes | Extent):
                raise BadRecord("bad_media", "an image without a path or bytes")
            self.read.append((read_image(source, label), label))
        return entry


def _images(raw: RawRecord, root: MediaRoot) -> tuple[list[tuple[bytes, str | None]], bool]:
    """Return a record's images up to one that cannot be read, and whether there is such a one."""
    images, is_whole = _Images(root), True
    if not isinstance(raw.record, BadRecord):
        try:
            images.opened(raw.record)
        except BadRecord:
            is_whole = False
    return images.read, is_whole


def _look(place: Range, encoder: ProcessorEncoder) -> _Seen:
    """Return which images the records of a range name."""
    shard, part = place
    found: dict[bytes, tuple[int, int]] = {}
    num_references = num_unreadable = 0
    patches = encoder.own_patches()
    for raw in raw_records(shard, part):
        images, is_whole = _images(raw, shard.root)
        num_references += len(images)
        for content, label in images:
            key = key_of(content)
            if key not in found:
                try:
                    found[key] = patches.nbytes(*image_size(content, label)), raw.row
                except BadRecord:
                    is_whole = False
        num_unreadable += not is_whole
    nbytes, rows = np.array([*found.values()], np.int64).reshape(-1, 2).T
    return _Seen(as_keys(b"".join(found)), nbytes, rows, num_references, num_unreadable)


# -- what is made of them --------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Images that are made of the records of a range.

    Attributes:
        place: shard and range.
        keys: of them.
        rows: where they are.
    """

    place: Range
    keys: frozenset[bytes]
    rows: frozenset[int]


class _Task(NamedTuple):
    """A file of pixels.

    Attributes:
        path: named by what is in it.
        pieces: of the data set, in order.
    """

    path: str
    pieces: list[_Piece]

    @property
    def num_images(self) -> int:
        return sum(len(piece.keys) for piece in self.pieces)


def _tasks(
    output: str, ranges: Sequence[Range], seen: Sequence[_Seen], known: NDArray[np.bytes_]
) -> list[_Task]:
    """Return the files to be written of the images that are not `known`, each image once."""
    keys = np.concatenate([as_keys(b""), *(each.keys for each in seen)])
    owners = np.repeat(np.arange(len(seen)), [len(each.keys) for each in seen])
    _, firsts = np.unique(keys, return_index=True)
    firsts = np.sort(firsts[~np.isin(keys[firsts], known)])
    rows = np.concatenate([np.empty(0, np.int64), *(each.rows for each in seen)])
    nbytes = np.concatenate([np.empty(0, np.int64), *(each.nbytes for each in seen)])
    files_of = np.cumsum(nbytes[firsts]) // _FILE_BYTES
    tasks = []
    for _, own in itertools.groupby(range(len(firsts)), key=files_of.__getitem__):
        places = firsts[list(own)]
        pieces = []
        for number in np.unique(owners[places]).tolist():
            of_range = places[owners[places] == number]
            own_keys = [key.ljust(KEY_BYTES, b"\0") for key in keys[of_range].tolist()]
            piece_rows = frozenset(rows[of_range].tolist())
            pieces.append(_Piece(ranges[number], frozenset(own_keys), piece_rows))
        name = f"pixels-{digest(keys[places].tobytes())[:16]}.arrow"
        tasks.append(_Task(os.path.join(output, name), pieces))
    return tasks


def _write(task: _Task, encoder: ProcessorEncoder) -> File:
    """Write a file of pixels; one that a killed run has written is taken as it is."""
    if not os.path.exists(task.path):
        with files.atomic_file(task.path) as stream, pa.ipc.new_file(stream, PIXELS) as out:
            rows: list[dict[str, Any]] = []
            for row in _rows(task, encoder):
                rows.append(row)
                if sum(len(each["patches"]) for each in rows) > _BATCH_BYTES:
                    out.write_batch(pa.RecordBatch.from_pylist(rows, PIXELS))
                    rows = []
            out.write_batch(pa.RecordBatch.from_pylist(rows, PIXELS))
    return _file(task.path, len(keys_in(task.path)))


def _rows(task: _Task, encoder: ProcessorEncoder) -> Iterator[dict[str, Any]]:
    for (shard, part), keys, rows in task.pieces:
        left = set(keys)
        for raw in raw_records(shard, part):
            images = _images(raw, shard.root)[0] if raw.row in rows else []
            for content, label in images:
                key = key_of(content)
                if key not in left:
                    continue
                left.discard(key)
                with contextlib.suppress(BadRecord):  # it only looks like an image
                    image = open_image(content, label)
                    form = Image.open(io.BytesIO(content)).format
                    yield row_of(key, image, form, *encoder.image_bytes(image))


def _file(path: str, num_rows: int) -> File:
    nbytes, sha256 = os.path.getsize(path), file_digest(path)
    return File(path=os.path.basename(path), rows=num_rows, bytes=nbytes, sha256=sha256)


def _finish(output: str, before: PixelsManifest, made: Sequence[File]) -> PixelsManifest:
    """Write the keys of all files, and then the manifest; return it.

    Files that neither this nor the last manifest names are of runs that were killed.
    """
    every = [*before.files, *(file for file in made if file.rows)]
    paths = [os.path.join(output, file.path) for file in every]
    table = keys_table([keys_in(path) for path in paths])
    name = f"keys-{digest(*(file.sha256.encode() for file in every))[:16]}.arrow"
    keys = os.path.join(output, name)
    with files.atomic_file(keys) as stream, pa.ipc.new_file(stream, KEYS) as out:
        out.write_table(table)
    manifest = sealed(
        PixelsManifest(
            settings=before.settings,
            software=software(),
            num_images=len(table),
            files=tuple(every),
            keys=_file(keys, len(table)),
        )
    )
    files.write_json(os.path.join(output, NAME), manifest.to_json())
    stated = {name for each in (before, manifest) for name in KIND.names(each.to_json())}
    for entry in os.listdir(output):
        if entry.lstrip(".").startswith(("pixels-", "keys-")) and entry not in stated:
            os.unlink(os.path.join(output, entry))
    return manifest
