"""What is made of a data set once, before training: its counts in it, or its images' pixels."""

from packidx.precompute.counts import PrecomputeSummary, precompute
from packidx.precompute.pixels import KeptSummary, keep_pixels

__all__ = ["KeptSummary", "PrecomputeSummary", "keep_pixels", "precompute"]
