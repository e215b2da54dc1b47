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


def windows_of(lengths: Lengths, options: Options, memory: int | None) -> list[WindowRange]:
    """Return the windows of a plan, sized to `memory` bytes unless `options` state their size."""
    limit = options.window_samples if memory is None else _fitting(lengths, memory)
    ends = shard_ends(lengths)
    if options.window_shards is not None:
        cuts = [*ends[options.window_shards - 1 :: options.window_shards], ends[-1]]
    elif limit is None:
        cuts = [lengths.num_samples]
    elif ends:
        cuts = _runs(ends, limit)
    else:
        cuts = [*range(limit, lengths.num_samples, limit), lengths.num_samples]
    windows: list[WindowRange] = []
    first = 0
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


def shard_ends(lengths: Lengths) -> list[int]:
    """Return the row after each shard; empty if the table does not name the shards of all rows."""
    ends = list(accumulate(shard.rows for shard in lengths.shards))
    if not ends or ends[-1] != lengths.num_samples:
        return []
    return [end for end in ends if end]


def _runs(ends: list[int], limit: int) -> list[int]:
    """Ends of runs of whole shards of at most `limit` samples, at least one shard each."""
    cuts, first = [], 0
    for end, after in zip(ends, [*ends[1:], None], strict=True):
        if after is None or after - first > limit:
            cuts.append(end)
            first = end
    return cuts
