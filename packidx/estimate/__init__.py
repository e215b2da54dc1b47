"""Counting: raw shards → the lengths table (FORMAT.md), one row per record, good or bad."""

from packidx.estimate.api import LengthsSummary, estimate_lengths

__all__ = ["LengthsSummary", "estimate_lengths"]
