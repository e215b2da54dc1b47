"""`precompute`: a data set written back with the counts of every record.

For trainers that pack inside the job, on lengths that they read. The lengths table of the data set
is made first (`packidx.estimate`); then it is joined with the records. ``_text_tokens`` counts all
of a sample but its media, template included: with the media's tokens it sums to its length.
The packer and the sampler of NeMo Automodel (0.7 and later) take the numbers of an entry of
``mm_inputs_meta`` by position.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import orjson

from packidx.errors import BadRecord, OptionError, SourceError
from packidx.estimate import estimate_lengths
from packidx.estimate.counter import BATCH, JobShard, job_shards
from packidx.estimate.parts import Sums, numbers_of, stated_sums
from packidx.estimate.summary import CountSummary
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import Layout, load_manifest
from packidx.io import files, storage, urls
from packidx.io.output_folder import Kind, check_free, replace_output
from packidx.lengths.table import Lengths, read_lengths
from packidx.records.containers.base import local_shard
from packidx.records.conversation import MediaInfo
from packidx.records.media.opener import media_info
from packidx.records.media.paths import check_places
from packidx.records.read import ReadRecord
from packidx.records.shards import InputFile, check_unchanged, short_names
from packidx.records.sources.find_shards import find_shards
from packidx.run.workers import Progress, open_workers

TEXT_TOKENS, META = "_text_tokens", "mm_inputs_meta"
KIND = Kind(
    what="data set",
    manifest=".packidx.json",  # with a dot: a search for data files does not find it
    format="packidx-precomputed",
)
_COLUMNS = ["text_tokens", "length", "media", "method", "reason"]


class Options(TypedDict, total=False):
    """Options, as of `packidx.estimate_lengths`."""

    processor_settings: Mapping[str, Any] | None
    trust_remote_code: bool
    media_root: str | os.PathLike[str] | None
    remote_media: Sequence[str]
    columns: Mapping[str, str] | None
    tags: Mapping[str, str] | None
    delimiter: str | None
    ignore: Sequence[str]
    workers: int | None


class FoundSources(NamedTuple):
    """Sources, and where their media may lie."""

    given: list[str]
    shards: list[InputFile]
    names: list[str]
    """Name of each shard in the output."""
    media: tuple[str | None, tuple[str, ...]]
    """Folder of the media, and what is allowed elsewhere."""


@dataclass(frozen=True, kw_only=True)
class PrecomputeSummary(CountSummary):
    """The content of a data set with counts; rejected records are written as they were."""

    num_shards: int
    encoder: dict[str, Any]
    """Fingerprint and name of the processor."""


def precompute(
    sources: Sequence[str] | str,
    output: str | os.PathLike[str],
    processor: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> PrecomputeSummary:
    """Write every shard of `sources` to `output` with ``_text_tokens`` and ``mm_inputs_meta``.

    An entry of the latter is ``[height, width, n_tokens]``, ``[frames, height, width, fps, seconds,
    n_tokens]`` or ``[samples, sampling rate, n_tokens]``.
    ``_text_tokens`` and the media's ``n_tokens`` sum to ``len(input_ids)``. JSON in all its forms
    becomes JSON Lines, a line of which keeps its bytes and gets two keys. A record that cannot be
    counted is written as it is; what is not JSON at all, inside of an array or of a compressed
    file, is left out, with a warning. `output` is built beside its place and put there whole; its
    bytes do not depend on `workers`.

    Args:
        sources: JSON or JSON Lines, as for `packidx.estimate_lengths`.
        output: a folder that is not there yet, or empty. Each shard is in it under the shortest
            end of its path that no other shard has.
        processor: folder or hub name of a Hugging Face processor.
        progress: called with how far the work is.
        options: as for `packidx.estimate_lengths`.

    Raises:
        SourceError: a source or the processor cannot be used, two sources would be one file, or
            no record could be counted.
        OptionError: an option or `output` cannot be used.
    """
    begun, output = time.monotonic(), os.fspath(output)
    found = find_sources(sources, options, output, KIND)
    # One name for all jobs: what a killed run has counted serves the next one, whatever that is.
    with replace_output(output, KIND, "precompute") as built:
        files.remove_tree(built.table)
        os.makedirs(built.table)
        lengths = built.scratch("lengths")
        counted = estimate_lengths(
            found.given, lengths, processor=processor, progress=progress, **options
        )
        manifest = load_manifest(
            os.path.join(lengths, "manifest.json"), LengthsManifest, "start again"
        )
        own = job_shards(found.shards, manifest.shards, True, *found.media)
        firsts = itertools.accumulate((shard.rows for shard in manifest.shards), initial=0)
        paths = (os.path.join(built.table, name) for name in found.names)
        tasks = [JoinTask(*each) for each in zip(own, firsts, paths, strict=False)]
        with open_workers("local", options.get("workers")) as pool:
            setup = functools.partial(read_lengths, lengths)
            sums = list(pool.map(write_shard, tasks, setup))
        total, of_sources = Sums(), dict[str, Sums]()
        for shard, each in zip(found.shards, sums, strict=True):
            total.update(each)
            of_sources.setdefault(shard.source, Sums()).update(each)
        if total["num_samples", ""] and not numbers_of(total, "method"):
            rejected = numbers_of(total, "rejected").items()
            raise SourceError(
                f"none of the {total['num_samples', '']} records could be counted "
                f"({', '.join(f'{number} {reason}' for reason, number in rejected)}), so nothing "
                "is written: packidx estimate says why, record by record"
            )
        shards = zip(found.names, map(_sums_of, sums), strict=True)
        stated = {"format": KIND.format, "version": 1, **_sums_of(total)}
        stated |= {"shards": [{"name": name, **each} for name, each in shards]}
        stated |= {"lengths": manifest.to_json()}
        files.write_json(os.path.join(built.table, KIND.manifest), stated)
    return PrecomputeSummary(
        path=output,
        num_shards=len(found.names),
        **_sums_of(total),
        num_tokens=total["num_tokens", ""],
        methods=numbers_of(total, "method"),
        sources=[{"name": name, **_sums_of(each)} for name, each in of_sources.items()],
        encoder={} if manifest.encoder is None else manifest.encoder.to_json(),
        seconds=time.monotonic() - begun,
        warnings=counted.warnings,
    )


def _sums_of(sums: Sums) -> dict[str, Any]:
    """The records of some sums, as manifests and summaries have them."""
    stated = stated_sums(sums)
    return {name: stated[name] for name in ("num_samples", "num_rejected", "rejected")}


# -- sources and their names in the output ---------------------------------------------------------


def find_sources(
    sources: Sequence[str] | str, options: Options, output: str, kind: Kind, separator: str = "/"
) -> FoundSources:
    """Find the shards of sources, and refuse an output that would mix with other files.

    Args:
        separator: between the parts of a path in the output.

    Raises:
        SourceError: a source cannot be used, or two of its shards would be one file.
        OptionError: an option cannot be used; `output` holds files, or is a URL.
    """
    media = check_places(options.get("media_root"), options.get("remote_media", ()))
    given = [sources] if isinstance(sources, str) else [os.fspath(source) for source in sources]
    layout = Layout(
        options.get("columns") or {},
        options.get("tags") or {},
        delimiter=options.get("delimiter"),
        ignore=tuple(options.get("ignore", ())),
    )
    shards = find_shards(given, layout)
    if urls.is_url(output):
        raise OptionError(
            f"{output} is a URL, and precompute writes to folders of this machine: name one, and "
            "copy it to the store then"
        )
    check_free(output, kind)
    return FoundSources(given, shards, output_names(shards, separator), media)


def output_names(shards: Sequence[InputFile], separator: str = "/") -> list[str]:
    """Each shard's path below the output: the shortest end of its own that tells it from the rest.

    Raises:
        OptionError: sides of preference pairs are taken, of which a record has two.
        SourceError: a shard is not JSON, or two of them would be one file.
    """
    names: dict[str, str] = {}
    for shard, name in zip(shards, short_names([shard.path for shard in shards]), strict=True):
        kind, _, compression = shard.container.partition(".")
        if shard.layout.pair is not None:
            raise OptionError(
                f"the mix says `pair` of {shard.source}, and a record that is written back has "
                "both sides and room for one's count: leave `pair` out, or write each side's "
                "records yourself"
            )
        if kind not in ("json", "jsonl"):
            raise SourceError(
                f"{shard.uri} is a {shard.container} file, and precompute writes back JSON and JSON"
                " Lines: save the data set as one of them first"
            )
        if shard.container != "jsonl":
            name = name.rsplit(".", 2 if compression else 1)[0] + ".jsonl"
        name = name.replace("/", separator)
        if name in names:
            raise SourceError(
                f"{names[name]} and {shard.uri} would both be {name} in the output: rename one of"
                " them, or write them to two folders"
            )
        names[name] = shard.uri
    return [*names]


# -- the join --------------------------------------------------------------------------------------


class JoinTask(NamedTuple):
    """One shard, and its rows of the lengths table."""

    shard: JobShard
    first_row: int
    """Row of the table that its first record is in."""
    path: str
    """Path of the file that is written."""


def write_shard(task: JoinTask, lengths: Lengths) -> Sums:
    """Write one shard with its counts, as JSON Lines; lines that it has keep their bytes.

    Raises:
        SourceError: it cannot be read, or changed since it was counted.
    """
    shard, sums = task.shard, Sums()
    has_lines = shard.file.container == "jsonl"
    os.makedirs(os.path.dirname(task.path), exist_ok=True)
    with (
        local_shard(shard.file.path) as copy,
        open(copy, "rb") as source,
        files.name_in_errors(task.path),
        open(task.path, "wb", buffering=1 << 20) as out,
    ):
        for read, given in _join_records(task, lengths, sums):
            record, (_, offset, nbytes) = read.data, read.locator
            line = b""
            if has_lines and offset is not None and nbytes is not None:
                line = os.pread(source.fileno(), nbytes, offset).strip()
            elif record is not None:
                line = orjson.dumps(record)
            if given and record is not None and record.keys().isdisjoint(given):
                line = b",".join((line[:-1], orjson.dumps(given)[1:]))
            elif given and record is not None:
                line = orjson.dumps({**record, **given})
            if line:
                out.write(line + b"\n")
    files.fsync_path(task.path)
    check_unchanged(shard.file.path, shard.stated)
    return sums


def _join_records(
    task: JoinTask, lengths: Lengths, sums: Sums
) -> Iterator[tuple[ReadRecord, dict[str, Any]]]:
    """Yield the records of a shard in order, with the keys that they get, and add to `sums`."""
    shard, at, columns = task.shard, task.first_row, task.shard.file.layout.columns
    for part in shard.stated.ranges:
        records = shard.read(part)
        while batch := list(itertools.islice(records, BATCH)):
            rows = lengths.read(at, at + len(batch), _COLUMNS).frame.to_dicts()
            at += len(batch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # here, as filters belong to all threads
                looked_up = storage.map_overlapped(
                    lambda record: _media_infos(record, shard), batch
                )
            for record, row, infos in zip(batch, rows, looked_up, strict=True):
                reason, given = row["reason"], dict[str, Any]()
                if reason is None and row["method"] == "heuristic":
                    reason = "not_compared"  # not found equal to transformers' own processor
                elif reason is None and (infos is None or len(infos) != len(row["media"] or ())):
                    reason = "unknown_size"
                sums["num_samples", ""] += 1
                if reason is not None:
                    sums["rejected", reason] += 1
                else:
                    sums["num_tokens", ""] += row["length"]
                    sums["method", row["method"]] += 1
                    given[columns.get("text_tokens", TEXT_TOKENS)] = row["text_tokens"]
                    if infos:
                        meta = _make_meta(row["media"], infos)
                        given[columns.get("mm_inputs_meta", META)] = meta
                yield record, given


def _media_infos(record: ReadRecord, shard: JobShard) -> list[MediaInfo] | None:
    """Return what is known of a record's media; None if one of them cannot be used."""
    try:
        talk = record.conversation
        return [] if talk is None else [media_info(medium, shard.root) for medium in talk.media]
    except BadRecord:  # the row says it, unless the medium has changed since
        return None


def _make_meta(
    media: Sequence[Mapping[str, Any]], infos: Sequence[MediaInfo]
) -> dict[str, list[Any]]:
    """``mm_inputs_meta`` of media in order of appearance."""
    meta: dict[str, list[Any]] = {}
    for medium, info in zip(media, infos, strict=True):
        kind, fps = medium["kind"], info.fps or 0.0
        # In the order in which NeMo's packer reads them; 0 is unknown.
        numbers: list[float] = [info.height, info.width]
        if kind == "audio":
            numbers = [info.num_samples, info.sampling_rate]
        elif kind == "video":
            seconds = info.num_frames / fps if fps else 0.0
            numbers = [info.num_frames, *numbers, fps, seconds]
        meta.setdefault(f"{kind}s_meta", []).append([*numbers, medium["tokens"]])
    return meta
