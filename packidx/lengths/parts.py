"""What a folder of a lengths table holds: its manifest, and some of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import chain, zip_longest
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.errors import FormatError
from packidx.format import schema
from packidx.format.lengths import PART_NAME, LengthsManifest
from packidx.format.manifest import load
from packidx.format.schema import Sample
from packidx.io import storage, urls
from packidx.io.copies import local_copy
from packidx.io.own_files import Kind, check_free
from packidx.records.shards import short_names

KIND = Kind(
    what="lengths table",
    manifest="manifest.json",
    format=schema.LENGTHS_FORMAT,
    parts=PART_NAME,
)


def existing_manifest(path: str) -> tuple[LengthsManifest | None, str | None]:
    """The manifest of the lengths table at `path`, if there is one that can be relied on, and what
    is wrong with one that cannot.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is not a lengths table.
        OSError: it cannot be looked at.
    """
    check_free(path, KIND)
    if KIND.manifest not in storage.names(path):
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
        copy = local_copy(file.within(path))
        rows = pq.read_table(copy, columns=_EXAMPLE, filters=[("reason", "in", reasons)])
        firsts = rows.group_by(["source", "reason"], use_threads=False).aggregate(
            [(name, "first") for name in _EXAMPLE[2:]]
        )
        for row in firsts.to_pylist():
            if (kind := (row["source"], row["reason"])) in wanted:
                record = f"{names[row['shard_first']]}#{row['row_first']}"
                examples[kind] = record, row["detail_first"]
    return examples


def first_samples(path: str, manifest: LengthsManifest, number: int) -> list[Sample]:
    """The first `number` usable rows, one of each source after the other, as a pack of their own
    would have them; fewer where there are no more.

    Raises:
        FormatError, OSError: a part of the table at `path` cannot be read.
    """
    wanted = {
        source.name: min(number, source.num_samples - source.num_rejected)
        for source in manifest.sources
    }
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _usable(path, manifest):
        if not any(len(taken[name]) < enough for name, enough in wanted.items()):
            break
        if len(taken[row["source"]]) < wanted[row["source"]]:
            taken[row["source"]].append(row)
    by_turns = chain.from_iterable(zip_longest(*(taken[name] for name in wanted)))
    rows = [row for row in by_turns if row is not None][:number]
    return [_sample(position, row) for position, row in enumerate(rows)]


def _usable(path: str, manifest: LengthsManifest) -> Iterator[dict[str, Any]]:
    for file in manifest.files:
        with pq.ParquetFile(local_copy(file.within(path))) as part:
            names = [name for name in part.schema_arrow.names if name in Sample._fields]
            for batch in part.iter_batches(256, columns=[*names, "status"]):
                yield from batch.filter(pc.equal(batch["status"], "ok")).to_pylist()


def _sample(position: int, row: dict[str, Any]) -> Sample:
    whole = dict.fromkeys(("pack_id", "copy", "piece", "token_start", "start"), 0)
    known = {name: row.get(name) for name in Sample._fields}
    return Sample(**{**known, **whole, "position": position, "padded_length": row["length"]})
