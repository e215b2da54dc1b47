"""Words and bounds of a plan's options. Imports no library, so that a command's help is quick."""

from __future__ import annotations

from typing import Literal

OnLong = Literal["drop", "split", "truncate", "error"]
GroupBy = Literal["source", "media_type"]
Schedule = Literal["stratified", "cost", "random"]
Side = Literal["train", "holdout"]
MAX_CAPACITY = 1 << 30
