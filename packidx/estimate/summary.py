"""What a run over all records of some sources came to, and how many of them may be rejected."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from packidx.errors import OptionError, PackidxError, SourceError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import DEFAULT, Encoder, Layout, load
from packidx.io import urls
from packidx.lengths.parts import KIND, rejected_rows
from packidx.records.containers.base import Locator
from packidx.records.containers.registry import container
from packidx.records.media.references import named
from packidx.records.shards import short_names

WARNED = Fraction(1, 100)
"""Above this share of a source a warning is due."""

Source = Mapping[str, Any]
"""``name``, ``num_samples`` and ``num_rejected``."""


@dataclass(frozen=True, kw_only=True)
class CountSummary:
    """The records that were counted, and those that were not."""

    path: str
    num_samples: int
    """Records, good and bad."""
    num_rejected: int
    num_tokens: int
    """Sum of the lengths of those that are not rejected."""
    methods: dict[str, int]
    """Records that are not rejected, by how they were counted."""
    rejected: dict[str, int]
    """Rejected records by reason."""
    sources: list[dict[str, Any]]
    """Per source: ``name``, ``num_samples``, ``num_rejected``, ``rejected`` (records by reason)."""
    seconds: float
    not_read: list[str] = field(default_factory=list)
    """What of the sources' folders is not read, a sentence each."""
    taken_from: list[str] = field(default_factory=list)
    """Which revision of what is on the Hub was read, and from where, a sentence each."""
    warnings: list[str] = field(default_factory=list)
    """What may be a mistake, a sentence each."""
    mistaken: list[Mistaken] = field(default_factory=list)
    """Sources whose records have a shape that is not known."""


def read_limit(given: str | float | None) -> Fraction | None:
    """The share of a source that may be rejected, exactly as it is written: ``0.05`` or ``'5%'``.

    Raises:
        OptionError: it is not a share.
    """
    if given is None:
        return None
    from packidx.plan.options import (
        read_number,  # the planner's libraries are slow to load
    )

    text = str(given).strip()
    number = read_number(text.removesuffix("%"))
    limit = None if number is None else number / (100 if text.endswith("%") else 1)
    if limit is None or not 0 <= limit <= 1:
        raise OptionError(
            f"max-rejected is {text!r:.40}: give a share of a source's records from 0 to 1, such "
            "as 0.05 or 5%"
        )
    return limit


def over_limit(sources: Sequence[Source], limit: Fraction | None) -> list[Source]:
    """The sources of which more is rejected; without a limit, those of which all is."""
    return [
        source
        for source in sources
        if source["num_samples"]
        and (_share(source) == 1 if limit is None else _share(source) > limit)
    ]


def check_rejected(sources: Sequence[Source], limit: Fraction | None, path: str) -> None:
    """Nothing, where every source is within the limit.

    Args:
        limit: None allows all but a source of which nothing is left.
        path: of what was written, for the error.

    Raises:
        SourceError: one is not.
    """
    over = over_limit(sources, limit)
    if not over:
        return
    more = f" (and too many of {len(over) - 1} more sources)" if len(over) > 1 else ""
    if limit is None:
        cure = "mend the source or leave it out, or give --max-rejected 1 to go on without it"
    else:
        cure = f"that is above --max-rejected {float(limit):g}, so mend the records or allow more"
    raise SourceError(f"{told(over[0])}{more}: {cure}; {path} is written, and has the reasons")


def rejection_warnings(sources: Sequence[Source]) -> list[str]:
    """A sentence for every source of which more than one percent is rejected."""
    return [told(source) for source in sources if source["num_samples"] and _share(source) > WARNED]


def told(source: Source) -> str:
    """Return how much of a source is rejected, in words."""
    bad, total = source["num_rejected"], source["num_samples"]
    if bad == total:
        return f"all {total:,} records of {source['name']} are rejected"
    share = f"{100 * bad / total:.1f} %"
    return f"{bad:,} of {total:,} records of {source['name']} are rejected ({share})"


def _share(source: Source) -> Fraction:
    return Fraction(source["num_rejected"], source["num_samples"])


OF_SHAPE = frozenset(
    ("no_messages", "bad_turn", "unknown_role", "bad_record", "media_mismatch", "bad_json")
    + ("preference_data", "no_pair", "bad_pair")
)
"""Reasons for which a record is rejected that another layout may cure."""
_HIDDEN = re.compile("__.*__")  # keys that a tar's reader adds to a record
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


def absent_columns(
    layouts: Mapping[str, Layout], sources: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each column that is stated of a source and that no record has."""
    return [
        f"no record of {source['name']} has a column {column!r}, which is stated to hold its {key}:"
        f" they have {', '.join(source['columns'])}"
        for source in sources
        if source["columns"]
        for key, column in layouts[source["name"]].columns.items()
        if source["columns"].keys().isdisjoint((column, *column.split(",")))
    ]


def dated(encoder: Encoder | None) -> list[str]:
    """Return a sentence if lengths depend on the day on which they are counted."""
    if encoder is None or encoder.day is None:
        return []
    return [f"lengths depend on the date: the chat template writes it (counted {encoder.day})"]


def mistaken_sources(path: str, sources: Sequence[Mapping[str, Any]]) -> list[Mistaken]:
    """Return what may be wrong with the sources of the lengths table at `path`.

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
    names = short_names([shard.uri for shard in manifest.shards])
    for row in rows:
        shard = manifest.shards[row["shard"]]
        try:
            layout = source.layout or DEFAULT
            reader = container(shard.container, layout.delimiter)
            path = urls.local_path(shard.uri)
            at = Locator(row["row"], row["offset"], row["nbytes"])
            record = reader.read_one(path, at).data
        except (PackidxError, OSError):
            continue  # no record at all
        if isinstance(record, dict):
            example = f"{names[row['shard']]}#{row['row']}"
            return Mistaken(name, num_rejected, num_samples, example, described(record))
    return None


def described(record: Mapping[str, Any], room: int = 300) -> str:
    """The keys of a record and the kinds of their values, in one line of at most `room`
    characters."""
    names = [name for name in record if not _HIDDEN.fullmatch(str(name))]
    text = ", ".join(f"{' '.join(str(name).split())}: {named(record[name])}" for name in names)
    return text if len(text) <= room else f"{text[: room - 1]}…"
