"""A raw record and a Hugging Face processor make one sample's tensors."""

from __future__ import annotations

from packidx.errors import missing_package

try:
    from packidx.encode.encoder import ProcessorEncoder
except ModuleNotFoundError as _error:
    raise missing_package("packidx.encode", _error, "tokenizers jinja2") from None

__all__ = ["ProcessorEncoder"]
