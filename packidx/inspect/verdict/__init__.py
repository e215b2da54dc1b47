"""A plan judged in plain sentences."""

from packidx.inspect.verdict.verdict import verdict
from packidx.inspect.verdict.waiting import is_powerless

__all__ = ["is_powerless", "verdict"]
