"""Columns of every table packidx writes, defined here alone, and rows as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

LENGTHS_FORMAT = "packidx-lengths"
INDEX_FORMAT = "packidx-index"
FORMAT_VERSION = 3


def fields_of(stated: str) -> list[pa.Field]:
    """Return the fields of columns: ``TYPE NAME NAME …``, semicolons between several types."""
    return [
        pa.field(name, pa.type_for_alias(kind))
        for kind, *names in map(str.split, stated.split(";"))
        for name in names
    ]


_MEDIA = fields_of("string kind; int32 tokens; int64 patches; int32 t h w at")
MEDIA = pa.list_(pa.struct(_MEDIA))
PLANNED_MEDIA = pa.list_(pa.struct([f for f in _MEDIA if f.name not in ("tokens", "patches")]))
"""Facts of a sample's media that a reader needs."""

LOCATOR = fields_of("string source key; int32 shard; int64 row offset nbytes")

LENGTHS = pa.schema(
    [
        pa.field("sample_id", pa.int64()),
        *LOCATOR,
        *fields_of("int32 text_tokens image_tokens video_tokens audio_tokens length label_tokens"),
        *fields_of("int32 num_turns num_images num_videos; int64 vision_patches vision_cost"),
        pa.field("media", MEDIA),
        *fields_of("string method status reason detail"),
    ]
)

# In tables with a sample that is trained in part (FORMAT.md); others leave the column out.
LABEL_SPANS = pa.list_(pa.struct(fields_of("int32 start stop")))
LENGTHS_WITH_SPANS = LENGTHS.append(pa.field("label_spans", LABEL_SPANS))

COUNTED = pa.schema(
    [
        *(field for field in LENGTHS if field.name.endswith("_tokens")),
        *(LENGTHS.field(name) for name in ("length", "vision_patches", "vision_cost")),
        *(LENGTHS_WITH_SPANS.field(name) for name in ("media", "label_spans", "method")),
    ]
)
"""Columns of a lengths table that a count gives."""

MEDIA_COUNTERS = (("num_images", "image_tokens"), ("num_videos", "video_tokens"), ("audio_tokens",))
"""Counters of each kind of medium: a sample has it if one is positive."""

SUMMED = (
    *("label_tokens", "image_tokens", "video_tokens", "audio_tokens", "num_images", "num_videos"),
    *("vision_patches", "vision_cost"),
)
"""Counters of a sample that packs sum up."""

PACKS = pa.schema(
    [
        *fields_of("int64 pack_id; string group; int32 window num_samples length padded_length"),
        *(LENGTHS.field(name) for name in SUMMED),
        *fields_of("int64 attention_cost first_row"),
    ]
)

SAMPLES = pa.schema(
    [
        *fields_of("int64 pack_id; int32 position; int64 sample_id; int32 copy piece token_start"),
        *fields_of("int32 start length padded_length label_tokens"),
        *LOCATOR,
        pa.field("media", PLANNED_MEDIA),
    ]
)
SAMPLES_OPTIONAL = ("media",)
"""Columns that are left out where the lengths do not have them, and read as null."""

DROPPED = pa.schema(
    [LENGTHS.field(name) for name in ("sample_id", "source", "key", "length", "reason", "detail")]
)


def _to_stored(schema: pa.Schema) -> pa.Schema:
    """Columns as a window's files have them: numbers count within the window, which no file knows
    the number of."""
    fields = [field for field in schema if field.name not in ("pack_id", "window")]
    return pa.schema([pa.field("pack", pa.int64()), *fields])


STORED_PACKS, STORED_SAMPLES = _to_stored(PACKS), _to_stored(SAMPLES)

METHODS = ("exact", "precomputed", "heuristic")
"""Strongest first; a row's is the weakest of its parts."""


class PlannedSample(NamedTuple):
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
class PlannedPack:
    """One pack: its row of the packs table and its samples in order of position."""

    pack_id: int
    stats: dict[str, Any]
    samples: list[PlannedSample]
