"""What is made of a data set once, before training: its counts in it, or its images resized."""

from packidx.precompute.counts import PrecomputeSummary, precompute
from packidx.precompute.images import ImagesSummary, write_images

__all__ = ["ImagesSummary", "PrecomputeSummary", "precompute", "write_images"]
