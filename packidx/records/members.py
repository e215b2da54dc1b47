"""Files beside a record, until a dialect places them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from packidx.io.ranges import Extent

MEMBERS = "__members__"
"""Column of a record that has its sample's files, as `Members`."""


class Members(NamedTuple):
    """The files of a sample."""

    key: str
    files: Mapping[str, bytes | Extent]
    """Whole name → content, in the order of the container."""
