"""Workers: how many processes do the work, and where. The caller's word alone decides."""

from packidx.run.workers import ENGINES, open_workers

__all__ = ["ENGINES", "open_workers"]
