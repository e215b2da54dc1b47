"""Write a data set back once, before training: with its counts, or with its images resized."""

from packidx.precompute.counts import PrecomputeSummary, precompute
from packidx.precompute.images import ImagesSummary, write_images

__all__ = ["ImagesSummary", "PrecomputeSummary", "precompute", "write_images"]
