"""Any processor's media, counted by probing it."""

from __future__ import annotations

from packidx.encode.probe.vision import ProbedVision, identity_of

__all__ = ["ProbedVision", "identity_of"]
