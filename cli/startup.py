"""Preparations of commands that plan and count: no pandas, memory that is reused, and
garbage that is rarely collected."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as <malloc.h> of glibc numbers them
_SIZE = 1 << 30  # bytes


class _NoPandas:
    """A finder that finds everything but pandas."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def spare_pandas() -> None:
    """Let Arrow find, and remember, that there is no pandas in this process."""
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    finder: Any = _NoPandas
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def keep_freed_memory() -> None:
    """Let glibc reuse what is freed; another C library goes on as it does."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _SIZE)
        mallopt(_TRIM_THRESHOLD, _SIZE)


def collect_garbage_rarely() -> None:
    """Spare a third of the time that ten records take: modules and tokenizers are millions of
    objects that stay."""
    gc.set_threshold(100_000, 10, 10)
    atexit.register(gc.freeze)
