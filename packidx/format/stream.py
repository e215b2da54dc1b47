"""The log of what a stream gave out."""

from __future__ import annotations

LOG_RECIPE = "stream.json"
"""File of a log that says what the stream is."""
LOG_COLUMNS = {
    "place": "int64",
    "position": "int32",
    "sample_id": "int64",
    "copy": "int32",
    "length": "int32",
}
"""Columns of a log's files: the records of packs that were given out."""
