"""Any processor's media, counted by probing it."""

from __future__ import annotations

from packidx.encode.probe.vision import MEDIA_PARTS, ProbedMedia, identity_of

__all__ = ["MEDIA_PARTS", "ProbedMedia", "identity_of"]
