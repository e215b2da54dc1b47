"""Packs as text beside the original shards, no media copied."""

from packidx.export.energon.api import EnergonSummary, export_energon

__all__ = ["EnergonSummary", "export_energon"]
