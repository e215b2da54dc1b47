"""Where a sample's record lies, from its id alone: ids are dense, in the order of the shards."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from packidx.format.index import IndexManifest


def first_ids(snapshot: IndexManifest) -> list[int] | None:
    """The id of each shard's first sample; None where the lengths were nobody's shards."""
    rows = [shard.rows for shard in snapshot.shards]
    if not rows or sum(rows) != snapshot.lengths.num_samples:
        return None
    return list(accumulate(rows, initial=0))[:-1]


def record_of(snapshot: IndexManifest, sample_id: int) -> tuple[int, int] | None:
    """Number of the shard and of the record in it; None where the id does not say it, as where a
    record may be the two sides of a preference pair."""
    firsts = first_ids(snapshot)
    if firsts is None or not 0 <= sample_id < snapshot.lengths.num_samples:
        return None
    number = bisect_right(firsts, sample_id) - 1
    shard = snapshot.shards[number]
    layout = next(each.layout for each in snapshot.sources if each.name == shard.source)
    if layout is not None and layout.pair == "both":
        return None
    return number, sample_id - firsts[number]
