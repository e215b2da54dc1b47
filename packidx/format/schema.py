"""Columns of every table packidx writes, defined here alone, and rows as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

LENGTHS_FORMAT = "packidx-lengths"
INDEX_FORMAT = "packidx-index"
FORMAT_VERSION = 3

MEDIA = pa.list_(
    pa.struct(
        [
            pa.field("kind", pa.string()),
            pa.field("tokens", pa.int32()),
            pa.field("patches", pa.int64()),
            pa.field("t", pa.int32()),
            pa.field("h", pa.int32()),
            pa.field("w", pa.int32()),
            pa.field("at", pa.int32()),
        ]
    )
)

# What a reader needs of a sample's media.
PLANNED_MEDIA = pa.list_(
    pa.struct([field for field in MEDIA.value_type if field.name not in ("tokens", "patches")])
)

LOCATOR = [
    pa.field("source", pa.string()),
    pa.field("key", pa.string()),
    pa.field("shard", pa.int32()),
    pa.field("row", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("nbytes", pa.int64()),
]

LENGTHS = pa.schema(
    [
        pa.field("sample_id", pa.int64()),
        *LOCATOR,
        pa.field("text_tokens", pa.int32()),
        pa.field("image_tokens", pa.int32()),
        pa.field("video_tokens", pa.int32()),
        pa.field("audio_tokens", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("label_tokens", pa.int32()),
        pa.field("num_turns", pa.int32()),
        pa.field("num_images", pa.int32()),
        pa.field("num_videos", pa.int32()),
        pa.field("vision_patches", pa.int64()),
        pa.field("vision_cost", pa.int64()),
        pa.field("media", MEDIA),
        pa.field("method", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
    ]
)

# In tables with a sample that is trained in part (FORMAT.md); others leave the column out.
LABEL_SPANS = pa.list_(pa.struct([pa.field("start", pa.int32()), pa.field("stop", pa.int32())]))
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
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "num_images",
    "num_videos",
    "vision_patches",
    "vision_cost",
)
"""Counters of a sample that packs sum up."""

PACKS = pa.schema(
    [
        pa.field("pack_id", pa.int64()),
        pa.field("group", pa.string()),
        pa.field("window", pa.int32()),
        pa.field("num_samples", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("padded_length", pa.int32()),
        *(LENGTHS.field(name) for name in SUMMED),
        pa.field("attention_cost", pa.int64()),
        pa.field("first_row", pa.int64()),
    ]
)

SAMPLES = pa.schema(
    [
        pa.field("pack_id", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("sample_id", pa.int64()),
        pa.field("copy", pa.int32()),
        pa.field("piece", pa.int32()),
        pa.field("token_start", pa.int32()),
        pa.field("start", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("padded_length", pa.int32()),
        pa.field("label_tokens", pa.int32()),
        *LOCATOR,
        pa.field("media", PLANNED_MEDIA),
    ]
)
SAMPLES_OPTIONAL = ("media",)
"""Columns that are left out where the lengths do not have them, and read as null."""

DROPPED = pa.schema(
    [LENGTHS.field(name) for name in ("sample_id", "source", "key", "length", "reason", "detail")]
)


def _stored(schema: pa.Schema) -> pa.Schema:
    """Columns as a window's files have them: numbers count within the window, which no file knows
    the number of."""
    fields = [field for field in schema if field.name not in ("pack_id", "window")]
    return pa.schema([pa.field("pack", pa.int64()), *fields])


STORED_PACKS, STORED_SAMPLES = _stored(PACKS), _stored(SAMPLES)

METHODS = ("exact", "precomputed", "heuristic")
"""Strongest first; a row's is the weakest of its parts."""


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
