"""Sources that are written back: options, shards, and their names in the output."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Layout
from packidx.io import urls
from packidx.io.output_folder import Kind, check_free
from packidx.records.media.paths import check_places
from packidx.records.shards import InputFile, short_names
from packidx.records.sources.find_shards import find_shards


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
