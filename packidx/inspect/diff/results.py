"""What `packidx diff` tells, as `packidx diff --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans."""

    path: str
    snapshot_id: str
    created: str


@dataclass(frozen=True, slots=True)
class Both:
    """A value of each plan; null where it has none."""

    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """What a source has in the packs of each plan, over all its epochs, pieces and copies."""

    samples: Both
    """Different ones."""
    tokens: Both
    share: Both
    """Of all packed tokens."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sample, and what is to be said of it in each plan."""

    source: str | None
    key: str | None
    sample_id: Both
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Examples:
    """The first samples of each kind, in order of the first plan's ids, then the second's.

    `gained` and `lost` have why the plan without the sample has not packed it (``absent``: it is
    not in its lengths), `moved` the first pack that it is in, `tokens_differ` its tokens.
    """

    gained: tuple[Example, ...]
    lost: tuple[Example, ...]
    moved: tuple[Example, ...]
    tokens_differ: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class SampleDiff:
    """What became of the samples."""

    matched_by: str
    """``sample_id`` (the lengths are the same), ``source and key``, or ``shard and row``: shards of
    the same content."""
    in_both: int
    """Samples that both plans pack."""
    gained: int
    """Samples that only B packs."""
    gained_from: Mapping[str, int]
    """Of these by what they were in A: a reason of its drops, or ``absent``."""
    lost: int
    """Samples that only A packs."""
    lost_to: Mapping[str, int]
    """Of these by what they are in B."""
    moved: int
    """Samples in both that share their packs with others of them than before."""
    companions_kept: float | None
    """Of the pairs of samples in both that share a pack in A, the share that do in B; null where
    there is none. A sample counts in its first pack."""
    tokens_differ: int
    """Samples in both that have another number of tokens in their packs, as the plan counts them:
    of the first copy in the first epoch, without what was cut off."""
    examples: Examples


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans, and all that differs."""

    same: bool
    """Both are the same snapshot: same lengths, options and packs. Nothing else is told then."""
    a: Side
    b: Side
    options: Mapping[str, Both]
    """Of those that differ."""
    lengths: Mapping[str, Both]
    """What differs in the lengths that were planned: fingerprint, methods, encoder, settings."""
    counts: Mapping[str, Both]
    """Of packs, samples, tokens; fill, bound and gap: equal ones, too."""
    dropped: Mapping[str, Both]
    """Samples by the reason for which they are in no pack."""
    sources: Mapping[str, SourceDiff]
    cost: Both
    """Of the first epoch's packs, in the unit of A's cost model, which both are measured by."""
    useful: Mapping[str, Both]
    """Share of the time in which no rank waits, by number of ranks and A's cost model."""
    samples: SampleDiff | None
    """Null where samples cannot be told from each other: lengths that differ, and neither unique
    keys nor shards."""
