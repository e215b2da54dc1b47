"""`precompute --pixels`: the images of a data set, decoded and resized once for all epochs.

Those that are kept already are not made again: so a killed run goes on, and data that was added
is what is made.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, OptionError, SourceError
from packidx.estimate.counter import CounterSettings, RecordCounter, ShardContext, raw_records
from packidx.estimate.job import job_shards
from packidx.format.manifest import Layout
from packidx.format.pixels import NAME, OWN, KeptPixels, PixelStore, kept, key_of
from packidx.io import urls
from packidx.io.own_files import Kind, check_free
from packidx.io.ranges import Extent
from packidx.records.containers.base import RecordRange
from packidx.records.media.images import open_image, read_image
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot, check_folder, check_remote
from packidx.records.media.references import reference_of
from packidx.records.shards import scan_shards
from packidx.records.sources.find_shards import find_shards
from packidx.run import open_workers
from packidx.run.workers import Progress, num_workers, silent

KIND = Kind(what="folder of pixels", manifest=NAME, format="")
_RECORDS = 512
"""Of a range that one task looks at; it reads over those before them."""
_BATCH_BYTES = 16 << 20
"""Of compressed patches that are held before they are written."""


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
        engine: ``'local'``: all write to one file.
        progress: called with how far the work is.

    Raises:
        SourceError: a source, a shard or the processor cannot be used.
        OptionError: an option or `output` cannot be used, or packidx does not make this processor's
            pixels.
        MismatchError: the pixels in `output` were made with other settings.
        MissingExtraError: torch or transformers is missing.
    """
    begun = time.monotonic()
    progress = progress or silent
    output = os.fspath(output)
    if urls.is_url(output) or engine != "local":
        raise OptionError("pixels are kept by processes of this machine, in a folder of it")
    settings = CounterSettings(os.fspath(processor), processor_settings or {}, trust_remote_code)
    make = functools.partial(_begin, output, settings)
    root, remote = check_folder(media_root), check_remote(remote_media)
    layout = Layout(columns or {}, tags or {}, delimiter=delimiter, ignore=tuple(ignore))
    given = [sources] if isinstance(sources, str) else [os.fspath(source) for source in sources]
    shards = find_shards(given, layout)
    maker = make()
    scans = scan_shards(shards, num_workers(workers), progress)
    own = job_shards(shards, scans, settings, RecordCounter(None), root, remote)
    tasks = [
        _Task(shard.context, part, first, min(first + _RECORDS, part.num_records))
        for shard in own
        for part in shard.ranges
        for first in range(0, part.num_records, _RECORDS)
    ]
    num_records = sum(task.last - task.first for task in tasks)
    total, done = _Done(), 0
    with open_workers(engine, workers) as pool:
        for number, each in pool.run(_keep, tasks, make, here=lambda: maker):
            total = _Done(*(sum(pair) for pair in zip(total, each, strict=True)))
            done += tasks[number].last - tasks[number].first
            progress("images", done, num_records)
    if total.num_unreadable and not len(maker.store):
        raise SourceError(
            f"none of the images of {total.num_unreadable} records can be used, so nothing is kept:"
            " packidx estimate says why, record by record"
        )
    return KeptSummary(
        path=output,
        num_images=len(maker.store),
        **total._asdict(),
        nbytes=os.path.getsize(os.path.join(output, NAME)),
        seconds=time.monotonic() - begun,
    )


class _Maker(NamedTuple):
    encoder: ProcessorEncoder
    store: PixelStore


def _begin(output: str, settings: CounterSettings) -> _Maker:
    """Return what makes pixels, and where they are kept."""
    encoder = ProcessorEncoder(
        settings.processor or "",
        settings=settings.processor_settings,
        trust_remote_code=settings.trust_remote_code,
        pixels="uint8",
    )
    settings_here = encoder.image_settings  # raises where there are none to keep
    if not os.path.isdir(output) or {*os.listdir(output)} - OWN:
        check_free(output, KIND)
    os.makedirs(output, exist_ok=True)
    store = PixelStore.begin(output, settings_here)
    encoder.check_store(store)
    return _Maker(encoder, store)


class _Task(NamedTuple):
    """Records [first, last) of a range of a shard."""

    shard: ShardContext
    range: RecordRange
    first: int
    last: int


class _Done(NamedTuple):
    """As in `KeptSummary`."""

    num_made: int = 0
    num_references: int = 0
    num_unreadable: int = 0


def _keep(task: _Task, maker: _Maker) -> _Done:
    """Make the images of some records that are not kept."""
    new: dict[bytes, KeptPixels] = {}
    num_made = num_references = num_unreadable = 0
    for raw in itertools.islice(raw_records(task.shard, task.range), task.first, task.last):
        images = _Images(task.shard.root)
        try:
            if not isinstance(raw.record, BadRecord):
                images.opened(raw.record)
            for content, label in images.read:
                key = key_of(content)
                if key not in new and not maker.store.holds(key):
                    new[key] = _made(content, label, maker.encoder)
        except BadRecord:
            num_unreadable += 1
        num_references += len(images.read)
        if sum(len(each.patches) for each in new.values()) > _BATCH_BYTES:
            num_made += maker.store.add(new.values())
            new.clear()
    num_made += maker.store.add(new.values())
    return _Done(num_made, num_references, num_unreadable)


class _Images(MediaOpener):
    """Reads the images of a record, the bytes of their files; videos' frames are left out.

    Args:
        root: where they may lie.

    Attributes:
        read: the bytes of each, and how errors name it.
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


def _made(content: bytes, label: str | None, encoder: ProcessorEncoder) -> KeptPixels:
    """
    Raises:
        BadRecord: it is no image that can be used.
    """
    image = open_image(content, label)
    form = Image.open(io.BytesIO(content)).format
    key = key_of(content)
    return kept(key, image.height, image.width, image.mode, form, *encoder.image_bytes(image))
