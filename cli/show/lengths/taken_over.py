"""What of an earlier table was taken over, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..console import number_of

if TYPE_CHECKING:
    from packidx.estimate.again.told import ShardChange, TakenOver

_NAMED = 5
"""Shards that are named in a line."""


def taken_over_facts(taken: TakenOver | None) -> dict[str, str]:
    """Lines of what was taken over, what was counted, and what became of shards."""
    if taken is None:
        return {}
    if taken.reason is not None:
        return {"taken over": f"nothing: {taken.reason}"}
    samples = number_of(taken.num_samples, "sample")
    facts = {"taken over": f"{samples} of {number_of(taken.num_shards, 'shard')}"}
    counted = [change for change in taken.changes if change.counted]
    if counted:
        number = number_of(taken.num_counted, "sample")
        shards = number_of(taken.num_counted_shards, "shard")
        facts["counted"] = f"{number} of {shards}: {_listed(counted)}"
    renamed = [c for c in taken.changes if not c.counted and c.change in ("moved", "copied")]
    if renamed:
        facts["moved"] = _listed(renamed)
    gone = [change for change in taken.changes if change.change == "vanished"]
    if gone:
        facts["vanished"] = _listed(gone, details=False)
    return facts


def _listed(changes: Sequence[ShardChange], details: bool = True) -> str:
    named = [
        f"{change.name} ({change.detail})" if details and change.detail else change.name
        for change in changes[:_NAMED]
    ]
    more = len(changes) - len(named)
    return ", ".join(named) + (f" and {more:,} more (--json names them)" if more else "")
