"""How good a plan is, in numbers."""

from packidx.inspect.stats.idle import (
    RANKS,
    ScheduledPacks,
    ranks_stats,
)
from packidx.inspect.stats.stats import pack_stats, sample_stats

__all__ = [
    "RANKS",
    "ScheduledPacks",
    "pack_stats",
    "ranks_stats",
    "sample_stats",
]
