"""`precompute --images`: each image once, at the size to which the processor resizes it.

The new files are lossless, so the processor's own resize of them changes nothing: lengths and
pixels stay equal, and any loader decodes and resizes less. A copy of the records names them.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import orjson
from PIL import Image

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, SourceError
from packidx.estimate.counter import JobShard, job_shards
from packidx.export.packed_record import messages_of
from packidx.format.manifest import DEFAULT, RecordRange
from packidx.format.schema import FORMAT_VERSION
from packidx.io import files, urls
from packidx.io.output_folder import Kind, replace_output
from packidx.precompute.counts import Options, find_sources
from packidx.records.conversation import Media
from packidx.records.dialects.raw_record import KNOWN
from packidx.records.media.images import label_of, open_image, read_image
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import media_in, refs_of
from packidx.records.read import CARRIED
from packidx.records.shards import scan_shards
from packidx.run.workers import Progress, num_workers, open_workers, report_nothing
from packidx.software import list_versions

KIND = Kind(what="folder of resized images", manifest=".packidx.json", format="packidx-images")
FOLDER, _ORIGINAL = "images", "original"
_RECORDS = 512
"""Records per task; a task reads over the records of its range before them."""
_ENDING, _PREDICTOR = ".tif", 317
"""TIFF with Zstandard over differences of neighbours (tag 317): of 4-megapixel photographs 0.6
bytes a pixel and 2.9 ms a megapixel to read; lossless WebP takes 9 ms, PNG 10 to 17."""


@dataclass(frozen=True, kw_only=True)
class ImagesSummary:
    """Result of `write_images`."""

    path: str
    num_records: int
    num_images: int
    """Different ones."""
    num_originals: int
    """Images among them that are copied, since the processor would resize the resized one again."""
    num_references: int
    """References to images, in the records."""
    num_unchanged: int
    """Records that are written as they were since they, or an image of theirs, cannot be used."""
    num_left_out: int
    """Records that are not written since they cannot be read."""
    nbytes: int
    """Bytes of all new images."""
    seconds: float


def write_images(
    sources: Sequence[str] | str,
    output: str | os.PathLike[str],
    processor: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> ImagesSummary:
    """Write the images of `sources` at the processor's size, and records that name them.

    Records become JSON Lines in `output`: ``messages`` of ``role`` and ``content``, and short
    columns that say nothing of them. Their images are ``images/ab/abcd….tif``, named by the digest
    of the original and relative to `output`. An image that the processor would resize twice is
    copied as it is. Videos and sounds stay where they are. A run that was killed goes on.

    Args:
        sources: JSON or JSON Lines, as for `packidx.estimate_lengths`.
        output: a folder of this machine that is not there yet, or empty.
        processor: folder or hub name of a Hugging Face processor of patches (Qwen-VL, GLM-V).
        progress: called with how far the work is.
        options: as for `packidx.estimate_lengths`.

    Raises:
        SourceError: a source, a shard or the processor cannot be used.
        OptionError: an option or `output` cannot be used, or the processor does not leave an image
            of its own size alone.
        MissingExtraError: torch or transformers is missing.
    """
    begun, progress, output = time.monotonic(), progress or report_nothing, os.fspath(output)
    workers = options.get("workers")
    found = find_sources(sources, options, output, KIND, "__")
    load_encoder = functools.partial(
        ProcessorEncoder,
        os.fspath(processor),
        settings=options.get("processor_settings") or {},
        trust_remote_code=options.get("trust_remote_code", False),
        pixels="uint8",
    )
    encoder = load_encoder()
    encoder.own_patches()  # raises if the processor makes its pixels itself
    scans = scan_shards(found.shards, num_workers(workers), progress)
    own = job_shards(found.shards, scans, True, *found.media)
    with replace_output(output, KIND, f"images by {encoder.fingerprint()}") as built:
        tasks = [
            _Task(shard.of_task(), part, first, built.table, name)
            for shard, name in zip(own, found.names, strict=True)
            for part in shard.stated.ranges
            for first in range(0, part.num_records, _RECORDS)
        ]
        for name in found.names:
            files.write_atomic(os.path.join(built.table, name), b"")
        total, done, used = Counter(dict.fromkeys(_COUNTED, 0)), 0, set[str]()
        num_records = sum(shard.stated.rows for shard in own)
        with open_workers("local", workers) as pool:
            written = pool.map(_write_task, tasks, load_encoder, here=lambda: encoder)
            for task, (lines, each, named) in zip(tasks, written, strict=True):
                with open(f"{built.table}/{task.name}", "ab") as out:
                    out.write(lines)
                used |= named
                total.update(each)
                done += min(_RECORDS, task.range.num_records - task.first)
                progress("records", done, num_records)
        if total["num_unchanged"] and not total["num_references"]:
            raise SourceError(
                f"none of {total['num_unchanged']} records can be used, so nothing is written: "
                "packidx estimate says why, record by record"
            )
        images = [Path(built.table, name) for name in used]
        for path in {*Path(built.table, FOLDER).rglob("*.*")} - {*images}:
            path.unlink()  # of a killed run over other data
        nbytes = sum(path.stat().st_size for path in images)
        stated = {"format": KIND.format, "version": FORMAT_VERSION, "software": list_versions()}
        stated |= {"encoder": encoder.fingerprint(), **total}
        files.write_json(os.path.join(built.table, KIND.manifest), stated)
    return ImagesSummary(
        path=output,
        num_images=len(images),
        num_originals=sum(_ORIGINAL in path.name for path in images),
        nbytes=nbytes,
        seconds=time.monotonic() - begun,
        **total,
    )


class _Task(NamedTuple):
    """Records from `first` on of a range of a shard, at most `_RECORDS`."""

    shard: JobShard
    range: RecordRange
    first: int
    folder: str
    """Folder of the output."""
    name: str
    """File of the output that the new records are added to."""


_COUNTED = ("num_records", "num_references", "num_unchanged", "num_left_out")


def _write_task(task: _Task, encoder: ProcessorEncoder) -> tuple[bytes, Counter[str], set[str]]:
    """Write the images of some records; return the new records in lines, and their images."""
    done, used = Counter(dict.fromkeys(_COUNTED, 0)), set[str]()
    shard, columns, lines = task.shard, dict[str, str](), list[bytes]()
    records = shard.read(task.range, columns)
    for read in itertools.islice(records, task.first, task.first + _RECORDS):
        images = _Images(shard.root, task.folder, encoder)
        try:
            if read.conversation is None:
                raise read.error or BadRecord("bad_record", "no conversation")
            media = map(images.moved, read.conversation.media)
            written = messages_of(read.conversation, [*media])
            record = _carried_columns(read.key, read.data or {}, columns) | written
            if read.conversation.text_tokens is not None:
                record["_text_tokens"] = read.conversation.text_tokens
            done["num_references"] += len(images.names)
            used.update(images.names)
        except BadRecord:
            done["num_left_out" if read.data is None else "num_unchanged"] += 1
            if read.data is None:
                continue
            # What other names leave no record must not be one by its own.
            record = read.data if shard.file.layout == DEFAULT else {"rejected": read.data}
        lines.append(orjson.dumps(record) + b"\n")
        done["num_records"] += 1
    return b"".join(lines), done, used


def _carried_columns(
    key: str | None, original: Mapping[str, Any], columns: Mapping[str, str]
) -> dict[str, Any]:
    """Return the id of a record and the columns that say nothing of what it trains on.

    Those that name a medium are left out: the new record has others.
    """
    carried = (name for name in original if columns.get(name) == CARRIED and name not in KNOWN)
    kept = {"id": key} | {name: original[name] for name in carried}
    return {
        name: value
        for name, value in kept.items()
        if value not in (None, "") and "://" not in str(value) and media_in(value) is None
    }


class _Images(MediaOpener):
    """Writes the images of a record.

    Attributes:
        names: new paths of its images, one per reference.
    """

    def __init__(self, root: MediaRoot, folder: str, encoder: ProcessorEncoder) -> None:
        super().__init__(root)
        self._folder, self._encoder = folder, encoder
        self.names: list[str] = []

    def moved(self, medium: Media) -> Any:
        """Return what names a medium in the new record."""
        if medium.kind != "image":
            refs = [
                ref if str(ref)[:5] == "data:" else self.located_at(ref) for ref in refs_of(medium)
            ]
            if not all(isinstance(ref, str) for ref in refs):
                raise BadRecord("bad_media", "a video or sound that is not a file")
            located = [ref if ref[:5] == "data:" else urls.to_absolute(ref) for ref in refs]
            return located if isinstance(medium.ref, list | tuple) else located[0]
        if medium.requests:
            raise BadRecord("unsupported_media_option", "the image has options of its own")
        source = self.located_at(medium.ref)
        if source is None:
            raise BadRecord("bad_media", "an image without a path or bytes")
        label = label_of(medium.ref) if isinstance(medium.ref, str) else None
        self.names.append(self._write_image(read_image(source, label), label))
        return self.names[-1]

    def _write_image(self, content: bytes, label: str | None) -> str:
        """Write an image unless it is there; return its path below the folder."""
        digest = hashlib.sha256(content).hexdigest()[:32]
        stem = f"{FOLDER}/{digest[:2]}/{digest}"
        if os.path.exists(os.path.join(self._folder, stem + _ENDING)):
            return stem + _ENDING
        image = self._encoder.resized(open_image(content, label))
        made = io.BytesIO()
        if image is None:
            made.write(content)
            ending = f"-{_ORIGINAL}.{(Image.open(made).format or 'img').lower()}"
        else:
            image.save(made, "TIFF", compression="zstd", tiffinfo={_PREDICTOR: 2})
            ending = _ENDING
        path = os.path.join(self._folder, stem + ending)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"  # so that no killed run leaves half of one
        with files.name_in_errors(path), open(temporary, "wb") as file:
            file.write(made.getbuffer())
        os.replace(temporary, path)
        return stem + ending
