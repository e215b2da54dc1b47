"""What a lengths folder on disk holds, and whether a path may become one."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.parquet as pq

from packidx.errors import FormatError
from packidx.format import schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.io import urls
from packidx.io.copies import local_copy
from packidx.io.own_files import Kind, check_free
from packidx.records.shards import short_names

KIND = Kind(
    what="lengths table",
    manifest="manifest.json",
    format=schema.LENGTHS_FORMAT,
    names=lambda stated: [part["path"] for part in (*stated["files"], *stated.get("media", ()))],
)


def existing_manifest(path: str) -> tuple[LengthsManifest | None, str | None]:
    """The manifest of the lengths table at `path`, if there is one that can be relied on, and what
    is wrong with one that cannot.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is no lengths table.
        OSError: it cannot be looked at.
    """
    names, _ = check_free(path, KIND)
    if KIND.manifest not in names:
        return None, None
    try:
        return load(urls.join(path, KIND.manifest), LengthsManifest, "it is written again"), None
    except (FormatError, OSError) as error:
        return None, str(error)


Rejected = tuple[str, str]
"""A source and a reason."""
_EXAMPLE = ["source", "reason", "shard", "row", "detail"]


def first_rejected(path: str, rejected: Collection[Rejected]) -> dict[Rejected, tuple[str, str]]:
    """Record (``shard#row``) and detail of the first row that a table has of each kind."""
    examples: dict[Rejected, tuple[str, str]] = {}
    manifest = load(urls.join(path, KIND.manifest), LengthsManifest, "estimate again")
    names = short_names([shard.uri for shard in manifest.shards])
    for file in manifest.files:
        wanted = [kind for kind in rejected if kind not in examples]
        if not wanted:
            break
        reasons = sorted({reason for _, reason in wanted})
        with local_copy(file.within(path)) as copy:
            rows = pq.read_table(copy, columns=_EXAMPLE, filters=[("reason", "in", reasons)])
        firsts = rows.group_by(["source", "reason"], use_threads=False).aggregate(
            [(name, "first") for name in _EXAMPLE[2:]]
        )
        for row in firsts.to_pylist():
            if (kind := (row["source"], row["reason"])) in wanted:
                record = f"{names[row['shard_first']]}#{row['row_first']}"
                examples[kind] = record, row["detail_first"]
    return examples
