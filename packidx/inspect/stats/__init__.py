"""How good a plan is, in numbers."""

from packidx.inspect.stats.idle import (
    MICRO_STEPS,
    RANKS,
    ScheduledPacks,
    ranks_stats,
    useful_with_micro_steps,
)
from packidx.inspect.stats.stats import pack_stats, sample_stats

__all__ = [
    "MICRO_STEPS",
    "RANKS",
    "ScheduledPacks",
    "pack_stats",
    "ranks_stats",
    "sample_stats",
    "useful_with_micro_steps",
]
