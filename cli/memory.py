"""Memory that a command keeps for itself until it ends.

The C library hands each large array back to the kernel when it is freed, and takes the next one
from there again, page by page and zeroed: a tenth of the time of a plan of 100 million samples.
"""

from __future__ import annotations

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as <malloc.h> of glibc numbers them
_SIZE = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Let glibc reuse what is freed; another C library goes on as it does."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _SIZE)
        mallopt(_TRIM_THRESHOLD, _SIZE)
