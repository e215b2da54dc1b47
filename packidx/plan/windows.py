"""Windows: runs of shards that are planned as one, in the memory that one takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from packidx.format.index import Options
from packidx.lengths.table import Lengths

# Of a plan too large for the memory limit. A sample's part of the work grows with the window, as
# arrays leave the cache, and a window's own part shrinks: 4 and 8 million cost the same, 16 more.
WINDOW = 1 << 23

# Measured peak of `packidx plan` per sample of a window, beyond what the modules take.
_BYTES = {"length": 90, "key": 60, "media": 0}
_OTHER_COLUMN = 12
_MEDIUM = 120  # and per medium of a sample
_FIXED = 400_000_000


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Rows start .. stop - 1 of the lengths table."""

    number: int
    start: int
    stop: int


def windows_of(
    lengths: Lengths, options: Options, taken: list[WindowRange], memory: int | None
) -> list[WindowRange]:
    """Return the windows of a plan: those `taken` from an earlier one, then runs of what follows
    them, which are planned in `memory` bytes where `options` do not say how long they are."""
    first = taken[-1].stop if taken else 0
    if first == lengths.num_samples and taken:
        return taken
    limit = options.window_samples if memory is None else _fitting(lengths, memory)
    ends = shard_ends(lengths, first)
    if options.window_shards is not None:
        cuts = [*ends[options.window_shards - 1 :: options.window_shards], ends[-1]]
    elif limit is None:
        cuts = [lengths.num_samples]
    elif ends:
        cuts = _runs(ends, first, limit)
    else:
        cuts = [*range(first + limit, lengths.num_samples, limit), lengths.num_samples]
    windows = list(taken)
    for stop in dict.fromkeys(cuts):
        if stop > first or not windows:
            windows.append(WindowRange(len(windows), first, stop))
            first = stop
    return windows


def _fitting(lengths: Lengths, memory: int) -> int | None:
    """Samples of a window for the memory limit; None where all fit at once."""
    each = sum(_BYTES.get(name, _OTHER_COLUMN) for name in lengths.columns)
    each += -(-_MEDIUM * lengths.num_media // lengths.num_samples)
    most = max(1 << 16, (memory - _FIXED) // each)
    return None if lengths.num_samples <= most else min(WINDOW, most)


def shard_ends(lengths: Lengths, first: int) -> list[int]:
    """Return the row after each shard that ends behind `first`; nothing of a table that does not
    say which shards all of its rows are of."""
    ends = list(accumulate(shard.rows for shard in lengths.shards))
    if not ends or ends[-1] != lengths.num_samples:
        return []
    return [end for end in ends if end > first]


def _runs(ends: list[int], first: int, limit: int) -> list[int]:
    """Ends of runs of whole shards of at most `limit` samples, at least one shard each."""
    cuts = []
    for end, after in zip(ends, [*ends[1:], None], strict=True):
        if after is None or after - first > limit:
            cuts.append(end)
            first = end
    return cuts
