"""Sources whose records have a shape that is not known, and what to type for them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import PackidxError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.io import urls
from packidx.lengths.existing import KIND
from packidx.lengths.first_rows import rejected_rows
from packidx.records.hints import described, suggested
from packidx.records.layout import Layout
from packidx.records.shards import raw_row, short_names

OF_SHAPE = frozenset(
    ("no_messages", "bad_turn", "unknown_role", "bad_record", "media_mismatch", "bad_json")
    + ("preference_data", "no_pair", "bad_pair")
)
"""Reasons for which a record is rejected that another layout may cure."""
_SHARE = 0.01
_EXAMPLES = 8


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A source of which at least one record in a hundred is rejected for its shape."""

    source: str
    num_rejected: int
    """For their shape."""
    num_samples: int
    record: str
    """``shard#row`` of an example."""
    keys: str
    """What it holds, in one line."""
    nearest: str | None
    """The layout that fits, in words; None where none was found."""
    options: list[str]
    """Of `packidx estimate`, under which the records are conversations."""
    sample: str | None
    """The example, as it would be read with these options."""


def mistaken_sources(path: str, sources: Sequence[Mapping[str, Any]]) -> list[Mistaken]:
    """What may be wrong with the sources of the lengths table at `path`.

    Args:
        sources: ``name``, ``num_samples`` and ``rejected``, rows by reason.
    """
    wanted = {}
    for source in sources:
        number = sum(n for reason, n in source["rejected"].items() if reason in OF_SHAPE)
        if number and number >= _SHARE * source["num_samples"]:
            wanted[source["name"]] = number, source["num_samples"]
    if not wanted:
        return []
    manifest = load(urls.join(path, KIND.manifest), LengthsManifest, "estimate again")
    if manifest.transform is not None:  # what it returned is in no file
        return []
    rows = rejected_rows(path, manifest, set(wanted), OF_SHAPE, _EXAMPLES)
    told = []
    for name in [name for name in wanted if name in rows]:
        with contextlib.suppress(RecursionError):  # records that are nested too deeply to look at
            told.append(_of_source(manifest, name, *wanted[name], rows[name]))
    return [entry for entry in told if entry is not None]


def _of_source(
    manifest: LengthsManifest,
    name: str,
    num_rejected: int,
    num_samples: int,
    rows: Sequence[Mapping[str, Any]],
) -> Mistaken | None:
    source = next(source for source in manifest.sources if source.name == name)
    layout = Layout.from_json(None if source.layout is None else source.layout.to_json())
    records = []
    for row in rows:
        shard = manifest.shards[row["shard"]]
        try:
            record = raw_row(
                urls.local_path(shard.uri),
                row["row"],
                row["offset"],
                row["nbytes"],
                kind=shard.container,
                delimiter=layout.delimiter,
            )
        except (PackidxError, OSError):
            continue  # no record at all
        if isinstance(record, dict):
            records.append(record)
    if not records:
        return None
    shard = manifest.shards[rows[0]["shard"]]
    names = short_names([shard.uri for shard in manifest.shards])
    found = suggested(records, layout, shard.container)
    return Mistaken(
        source=name,
        num_rejected=num_rejected,
        num_samples=num_samples,
        record=f"{names[rows[0]['shard']]}#{rows[0]['row']}",
        keys=described(records[0]),
        nearest=None if found is None else found.nearest,
        options=[] if found is None else found.options(layout),
        sample=None if found is None else found.sample,
    )
