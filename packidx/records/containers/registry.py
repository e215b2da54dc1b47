"""Kinds of containers, by name and by ending."""

from __future__ import annotations

import functools
import os
from typing import get_args

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Container as Kind
from packidx.io import urls
from packidx.records.containers.base import Container, local_shard
from packidx.records.containers.lines import CODECS, Converted, Lines, json_kind, open_text
from packidx.records.containers.tables import ARROW, PARQUET
from packidx.records.containers.tar import Tar

DEFAULT = "jsonl"
"""The kind of a shard whose manifest does not say."""

KINDS: dict[str, Container] = {
    **{kind: Converted(kind) for kind in get_args(Kind)},
    "jsonl": Lines(),
    "parquet": PARQUET,
    "arrow": ARROW,
    "tar": Tar(),
}
"""Every kind of container; the name of a kind is its files' ending, too."""
_ENDINGS = {f".{kind}": kind for kind in KINDS} | {
    f".ndjson{codec}": f"jsonl{codec}" for codec in ("", *(f".{codec}" for codec in CODECS))
}
SUFFIXES = tuple(_ENDINGS)
"""Endings of file names that hold records."""
KNOWN = ", ".join(SUFFIXES)
JSON = (".json", *(f".json.{codec}" for codec in CODECS))
"""Endings of files that must be looked into to know what they are."""


@functools.cache
def get_container(kind: str, delimiter: str | None = None) -> Container:
    """Return what reads files of a kind.

    Args:
        delimiter: between the cells of a table in text, where it is not the kind's own; with one,
            cells may be quoted, in a TSV, too.

    Raises:
        SourceError: no such kind; it may be a newer version's.
        OptionError: `delimiter` is not one character, or the kind has none.
    """
    if kind not in KINDS:
        raise SourceError(f"no container of kind {kind!r}: known are {', '.join(KINDS)}")
    if delimiter is None:
        return KINDS[kind]
    if kind.partition(".")[0] not in ("csv", "tsv"):
        raise OptionError(f"a delimiter is for csv and tsv files, not for {kind}")
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        raise OptionError(f"the delimiter is {delimiter!r}: give one ASCII character")
    return Converted(kind, delimiter)


def ending_of(name: str) -> str:
    """Return the ending of a file's name that says what it holds; empty if it has none."""
    return max((ending for ending in SUFFIXES if name.endswith(ending)), key=len, default="")


def required_kind(uri: str, path: str) -> str:
    """Return the container of a file of records; a SourceError if it is of no known kind."""
    if not urls.is_url(path) and not os.path.isfile(path):  # `find_shards` says what it is
        return DEFAULT
    if (kind := kind_of(path)) is not None:
        return kind
    if path.endswith(JSON):
        raise SourceError(
            f"{uri} holds one object that is no record: write an array of records, or one record a "
            "line; a mix of data sets is named mix.json, *.mix.json, meta.json or dataset_info.json"
        )
    known = f"known endings are {KNOWN}, and .yaml, .yml"
    raise SourceError(f"{uri} is of an unknown kind: {known}; unpack compressed tars")


def kind_of(path: str) -> str | None:
    """Return the kind of a file by its name, and for ``.json`` by what it holds.

    None if the name has no known ending, or a ``.json`` file holds one object without a list of
    records (a mix, a configuration). A SourceError if the file cannot be read.
    """
    kind = _ENDINGS.get(ending_of(os.path.basename(path)))
    if kind is None or not path.endswith(JSON):
        return kind
    _, dot, codec = kind.partition(".")
    with local_shard(path) as copy, open_text(copy, codec) as file:
        text, _ = json_kind(file)
    return None if text is None else text + dot + codec
