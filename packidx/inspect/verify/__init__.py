"""Checks of a snapshot against itself and against its data."""

from packidx.inspect.verify.api import verify, verify_snapshot

__all__ = ["verify", "verify_snapshot"]
