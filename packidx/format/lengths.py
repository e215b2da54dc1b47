"""The lengths manifest, and the fingerprint of a lengths table."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec import field

from packidx.digests import canonical_json, digest_parts
from packidx.errors import FormatError, SourceError
from packidx.format.manifest import (
    Count,
    Encoder,
    File,
    Manifest,
    Sha256,
    Shard,
    SourceData,
    Transform,
    load_manifest,
    written_default,
)
from packidx.format.schema import FORMAT_VERSION, LENGTHS_FORMAT
from packidx.io import storage, urls
from packidx.io.cache import StoredFile
from packidx.io.output_folder import Kind, check_free

PART_NAME = re.compile(r"part-\d{5,}-(?P<key>[0-9a-f]{16})-(?P<digest>[0-9a-f]{16})\.parquet")
"""Parts of a table: their number, the digits of what decides the rows, and of their SHA-256."""
KIND = Kind(what="lengths table", manifest="manifest.json", format=LENGTHS_FORMAT, parts=PART_NAME)
# Of a layout, what says where media are, and what only a plan makes use of.
_NOT_HASHED = ("media_root", "sample_ratio")
_SUMS = ("num_samples", "num_rejected", "rejected", "num_tokens", "num_label_tokens")


class Source(SourceData, frozen=True, kw_only=True):
    """A named data set of a lengths table."""

    num_rejected: Count
    rejected: Mapping[str, Count] | None = None
    num_tokens: Count
    num_label_tokens: Count | None = written_default(None)
    num_media: Count | None = None


class LengthsManifest(Manifest, frozen=True, kw_only=True):
    """The manifest of a lengths table (FORMAT.md)."""

    FORMAT: ClassVar[str] = LENGTHS_FORMAT
    VERSION: ClassVar[int] = FORMAT_VERSION

    fingerprint: Sha256
    num_samples: Count
    num_rejected: Count
    encoder: Encoder | None
    options: Mapping[str, Any]
    transform: Transform | None = None
    shards: tuple[Shard, ...]
    text_engine: Mapping[str, Any] | None = written_default(None)
    sources: tuple[Source, ...]
    files: tuple[File, ...]
    keys: tuple[tuple[str, ...], ...] | None = None
    """Keys of the tasks of each file; empty ones for rows that another run may mend."""
    methods: Mapping[str, Count]
    rejected: Mapping[str, Count]
    num_media: Count
    software: Mapping[str, Any] = field(default_factory=dict)


def fingerprint_table(stated: Mapping[str, Any]) -> str:
    """Return the digest of what a table was counted of and by, and of its sums.

    It names no place and no library. The values are in the digests of a plan's windows.

    Args:
        stated: a lengths manifest.
    """
    encoder, transform = stated["encoder"], stated.get("transform")
    head = {
        "format": LENGTHS_FORMAT,
        "version": FORMAT_VERSION,
        "methods": {name: number for name, number in stated["methods"].items() if number},
        "encoder": None if encoder is None else encoder["fingerprint"],
        "transform": transform and [transform["fingerprint"], transform["seed"]],
        "shards": [
            [shard["fingerprint"], shard["rows"], shard["source"], shard.get("container", "jsonl")]
            for shard in stated["shards"]
        ],
        "sources": [_describe_source(source) for source in stated["sources"]],
    }
    return digest_parts(canonical_json(head))


def _describe_source(source: Mapping[str, Any]) -> list[Any]:
    """Return what of a source is not a place: its name, whether nothing outside its media root is
    read, its own names for things, and its sums."""
    layout = source.get("layout") or {}
    names = {name: value for name, value in layout.items() if name not in _NOT_HASHED}
    sums = [source.get(name) for name in _SUMS]
    return [source["name"], source["media_root"] is not None, names, sums]


def existing_manifest(path: str) -> tuple[LengthsManifest | None, str | None]:
    """The manifest of the lengths table at `path`, if there is one that can be relied on, and what
    is wrong with one that cannot.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is not a lengths table.
        OSError: it cannot be looked at.
    """
    check_free(path, KIND)
    if KIND.manifest not in storage.list_names(path):
        return None, None
    try:
        return load_manifest(
            urls.join_path(path, KIND.manifest), LengthsManifest, "it is written again"
        ), None
    except (FormatError, OSError) as error:
        return None, str(error)


HELP = (
    "make one with `packidx estimate SOURCE -o lengths/`, or give a Parquet file that has `length`"
)


class KnownTable(NamedTuple):
    """A lengths table, and what its manifest says."""

    manifest: LengthsManifest | None
    """None of bare Parquet."""
    files: list[StoredFile]
    is_pattern: bool = False


def known_table(
    uri: str, is_pattern: bool | None = None, fingerprint: str | None = None
) -> KnownTable:
    """The lengths table at `uri`. What is there by that very name wins over a pattern.

    Args:
        is_pattern: of a path that a snapshot recorded, whether it was one then: a file whose name
            has marks, and which is gone, must not become others that match it.
        fingerprint: that of the table, where it is known.

    Raises:
        SourceError: nothing is there, it is being written, or it is not a table.
        FormatError: its manifest is broken, or another one is in its place.
        OSError: a store cannot be asked.
    """
    may_match = any(mark in uri for mark in "*?[") if is_pattern is None else is_pattern
    if may_match and not storage.exists(uri):
        matches = storage.glob(uri)
        if not matches:
            raise SourceError(f"{uri} matches no file; {HELP}")
        return KnownTable(None, [StoredFile(path) for path in matches], True)
    if storage.is_file(uri):
        return KnownTable(None, [StoredFile(uri)])
    path = urls.join_path(uri, "manifest.json")
    if storage.is_file(path):
        manifest = load_manifest(path, LengthsManifest, HELP)
        if fingerprint not in (None, manifest.fingerprint):
            raise FormatError(f"{uri} is not the table that was planned")
        return KnownTable(manifest, [file.within(uri) for file in manifest.files])
    names = storage.list_names(uri)
    if not names and not storage.exists(uri):
        raise SourceError(f"{uri} does not exist; {HELP}")
    if any(map(PART_NAME.fullmatch, names)):  # what is there may be half a table
        raise SourceError(
            f"{uri} has no manifest.json yet: it is being written, or its run was cut off; run "
            "`packidx estimate` again"
        )
    tables = [name for name in names if name.endswith(".parquet")]
    if not tables:
        raise SourceError(
            f"{uri} is not a lengths table: it holds no manifest.json and no Parquet; {HELP}"
        )
    return KnownTable(None, [StoredFile(urls.join_path(uri, name)) for name in tables])
