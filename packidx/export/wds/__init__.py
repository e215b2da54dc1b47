"""Packs as samples of new WebDataset tars."""

from packidx.export.wds.api import WdsSummary, export_wds

__all__ = ["WdsSummary", "export_wds"]
