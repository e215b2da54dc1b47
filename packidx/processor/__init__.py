"""A processor's tokenizer, chat template and media settings, without transformers or torch.

`load_processor` reads a folder (or fetches a model's small files), and `ConversationCounter` turns
conversations and image sizes into the token counts that the real processor would build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packidx.processor.assemble import ProcessorFiles
    from packidx.processor.counter import ConversationCounter
    from packidx.processor.counts import Counts
    from packidx.processor.folder import load_processor

__all__ = ["ConversationCounter", "Counts", "ProcessorFiles", "load_processor"]

_HOME = {
    "ConversationCounter": "counter",
    "Counts": "counter",
    "ProcessorFiles": "folder",
    "load_processor": "folder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
