"""A raw record and a Hugging Face processor make one sample's tensors."""

from __future__ import annotations

from packidx.encode.encoder import ProcessorEncoder

__all__ = ["ProcessorEncoder"]
