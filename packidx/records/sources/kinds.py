"""What a file is: records, or a mix of data sets."""

from __future__ import annotations

import os
from typing import Any

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.records.containers.blocks import local_shard
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.containers.registry import SUFFIXES, kind_of
from packidx.records.containers.tar.container import refuse_compressed
from packidx.records.sources import mixes

KNOWN = ", ".join(SUFFIXES)
JSON = (".json", ".json.gz", ".json.zst")
"""Endings of files that must be looked into to know what they are."""


def is_small(path: str) -> bool:
    return storage.stat(path).nbytes <= 16 << 20


def mix_in_file(path: str) -> Any:
    """The mix in a file; None where a ``.json`` file is none; that file is read again for its
    records, so a copy of it is kept."""
    with local_shard(path) as copy:
        return mixes.load_mix(copy)


def required_kind(uri: str, path: str, data_type: str | None = None) -> str:
    """The container of a file of records, `data_type` where the file does not say.

    Raises:
        SourceError: the file is of no known kind.
    """
    if not urls.is_url(path) and not os.path.isfile(path):  # `find_shards` says what it is
        return JSONL
    refuse_compressed(uri)
    kind = known_kind(path)
    if kind is not None or (kind := data_type) is not None:
        return kind
    if path.endswith(JSON):
        raise SourceError(
            f"{uri} holds one object that is neither a record nor a mix: write an array of "
            "records, one record a line, or a mix of data sets with file_name"
        )
    raise SourceError(f"{uri} is of an unknown kind: known endings are {KNOWN}, and .yaml, .yml")


def known_kind(path: str) -> str | None:
    """The container that a file's name and first bytes say; None where they say none."""
    if not path.endswith(JSON):
        return kind_of(path)
    with local_shard(path) as copy:
        return kind_of(copy)
