"""Records in the standard names: a dialect with other names for its turns or media ends here."""

from __future__ import annotations

from typing import Any

from packidx.records.containers.tar.samples import MEMBERS
from packidx.records.dialects.loongforge import TEXTS, with_texts
from packidx.records.dialects.media_type import check_kinds, stated_kinds
from packidx.records.dialects.webdataset import with_members
from packidx.records.layout import Layout


def standard(record: dict[str, Any], layout: Layout, cells: bool) -> dict[str, Any]:
    """A record in the standard names, with the media that its container has beside it."""
    record = layout.apply(record, cells=cells)
    if TEXTS not in record and MEMBERS not in record:
        return record
    stated = stated_kinds(record)
    record = with_members(with_texts(record), stated)
    if stated is not None:
        check_kinds(record, stated)
    return record
