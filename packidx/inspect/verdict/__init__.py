"""A plan judged in plain sentences."""

from packidx.inspect.verdict.verdict import is_powerless, verdict

__all__ = ["is_powerless", "verdict"]
