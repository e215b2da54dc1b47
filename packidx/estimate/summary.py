"""The summary of a run over the records of some sources, and the limit of rejected ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pyarrow.parquet as pq

from packidx.errors import OptionError, SourceError
from packidx.format.lengths import KIND, LengthsManifest
from packidx.format.manifest import Encoder, load_manifest
from packidx.io import urls
from packidx.io.cache import local_copy
from packidx.records.shards import short_names

WARNED = Fraction(1, 100)
"""Above this share of a source a warning is due."""

_MASS, _FEW = Fraction(1, 20), 20
"""Share and number of rejected records of a source that end a command which allows none."""

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
    warnings: list[str] = field(default_factory=list)
    """Possible mistakes, a sentence each."""


def read_limit(given: str | float | None) -> Fraction | None:
    """The share of a source that may be rejected, exactly as it is written: ``0.05`` or ``'5%'``.

    Raises:
        OptionError: it is not a share.
    """
    if given is None:
        return None
    from packidx.plan.options import read_number  # the planner's libraries are slow to load

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
    """Return the sources of which more is rejected.

    Args:
        limit: None stands for `_MASS`, and passes sources with few rejected records.
    """
    most, few = (_MASS, _FEW) if limit is None else (limit, 0)
    return [
        source
        for source in sources
        if (share := _rejected_share(source)) > most
        and (source["num_rejected"] >= few or share == 1)
    ]


def check_rejected(sources: Sequence[Source], limit: Fraction | None, path: str) -> None:
    """Raise a SourceError if a source is over the limit.

    Args:
        limit: as of `over_limit`.
        path: of what was written, for the error.
    """
    over = over_limit(sources, limit)
    if not over:
        return
    more = f" (and too many of {len(over) - 1} more sources)" if len(over) > 1 else ""
    if limit is None:
        cure = "mend the source or leave it out, or give --max-rejected 1 to go on"
    else:
        cure = f"that is above --max-rejected {float(limit):g}, so mend the records or allow more"
    raise SourceError(
        f"{describe_rejected(over[0])}{more}: {cure}; {path} is written, and has the reasons"
    )


def rejection_warnings(sources: Sequence[Source]) -> list[str]:
    """A sentence for every source of which more than one percent is rejected."""
    return [describe_rejected(source) for source in sources if _rejected_share(source) > WARNED]


def describe_rejected(source: Source) -> str:
    """Return how much of a source is rejected, in words."""
    bad, total = source["num_rejected"], source["num_samples"]
    if bad == total:
        return f"all {total:,} records of {source['name']} are rejected"
    share = f"{100 * bad / total:.1f} %"
    return f"{bad:,} of {total:,} records of {source['name']} are rejected ({share})"


def _rejected_share(source: Source) -> Fraction:
    return Fraction(source["num_rejected"], max(1, source["num_samples"]))


Rejected = tuple[str, str]
"""A source and a reason."""
_EXAMPLE = ["source", "reason", "shard", "row", "detail"]


def first_rejected(path: str, rejected: Collection[Rejected]) -> dict[Rejected, tuple[str, str]]:
    """Record (``shard#row``) and detail of the first row that a table has of each kind."""
    examples: dict[Rejected, tuple[str, str]] = {}
    manifest = load_manifest(urls.join_path(path, KIND.manifest), LengthsManifest, "estimate again")
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


def warn_of_date(encoder: Encoder | None) -> list[str]:
    """Return a sentence if lengths depend on the day on which they are counted."""
    if encoder is None or encoder.day is None:
        return []
    return [f"lengths depend on the date: the chat template writes it (counted {encoder.day})"]
