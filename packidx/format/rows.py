"""Rows of the snapshot's tables as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One row of the samples table (FORMAT.md): a piece in a pack, and where its record lies."""

    pack_id: int
    position: int
    sample_id: int
    copy: int
    piece: int
    token_start: int
    start: int
    length: int
    padded_length: int
    label_tokens: int | None
    source: str | None
    key: str | None
    shard: int | None
    row: int | None
    offset: int | None
    nbytes: int | None
    media: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """One pack: its row of the packs table and its samples in order of position."""

    pack_id: int
    stats: dict[str, Any]
    samples: list[Sample]
