"""What of an earlier table a job takes over, once it is known how its text is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from packidx.estimate.again.earlier import Earlier
from packidx.estimate.again.keep import Kept, kept_rows, matches
from packidx.estimate.again.recipe import decision_difference
from packidx.estimate.again.told import TakenOver, nothing_taken_over, taken_over
from packidx.estimate.job import EstimateJob


@dataclass(frozen=True, slots=True)
class Taking:
    """What is taken over."""

    rows: Kept = field(default_factory=dict)
    earlier: str | None = None
    """Digest of the manifest of the table they are of; None where there are none."""
    told: TakenOver | None = None


def what_is_kept(job: EstimateJob, earlier: Earlier | None, wrong: str | None) -> Taking:
    """What `job`, whose text backend and comparison are decided, takes over.

    Args:
        wrong: what is wrong with the manifest of a table that is of no use.

    Raises:
        OSError: a store cannot be asked.
    """
    if earlier is None:
        return Taking() if wrong is None else Taking(told=nothing_taken_over(job, wrong))
    reason = earlier.differs or decision_difference(job, earlier.manifest)
    if reason is not None:
        return Taking(told=nothing_taken_over(job, reason))
    found = matches(job, earlier)
    kept = kept_rows(job, earlier, found)
    told = taken_over(job, earlier, found, kept)
    return Taking(kept.rows, earlier.manifest.digest if kept.rows else None, told)
