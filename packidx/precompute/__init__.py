"""Counts written back into the data: for trainers that pack inside the job, on lengths they read.

Every record gets ``_text_tokens`` and, where it has media, ``mm_inputs_meta``; all else stays.
"""

from packidx.precompute.api import PrecomputeSummary, precompute

__all__ = ["PrecomputeSummary", "precompute"]
