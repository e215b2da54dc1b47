"""A plan judged in plain sentences."""

from packidx.inspect.verdict.verdict import verdict

__all__ = ["verdict"]
