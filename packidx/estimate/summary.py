"""What a run over all records of some sources came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CountSummary:
    """What was counted, and what was not."""

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
    warnings: list[str] = field(default_factory=list)
    """What may be a mistake, a sentence each."""
