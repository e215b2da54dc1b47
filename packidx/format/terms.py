"""Words of a plan's options, and why samples are in no pack: what is lost, what was left out.

Imports no library, so that a command's help is quick.
"""

from __future__ import annotations

from typing import Literal

OnLong = Literal["drop", "split", "truncate", "error"]
GroupBy = Literal["source", "media_type"]
SCHEDULE_NAMES = ("stratified", "random", "by:COLUMN")
Side = Literal["train", "holdout"]
PAIR_SIDES = ("chosen", "rejected")
"""Values of `packidx.format.manifest.Layout.pair`: the answer of preference pairs to use."""
ANSWERS = ("first",)
"""Values of `packidx.format.manifest.Layout.answers`."""
COLUMNS = (
    *("messages", "images", "videos", "audios", "system", "tools", "id"),
    *("input_ids", "labels", "text_tokens", "mm_inputs_meta"),
    *("prompt", "query", "response", "history", "caption", "text"),
    *("chosen", "rejected"),
)
"""Standard columns that another may stand for."""
TAGS = {
    "role_tag": None,  # which names a key, as does the next
    "content_tag": None,
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "function_call",
}
"""What LLaMA-Factory and NeMo call the words of a turn → the role such a word means."""
MAX_CAPACITY = 1 << 30
LOG_RECIPE = "stream.json"
"""File of a stream's log that says what the stream is."""

BY_CHOICE = ("excluded", "consumed", "holdout", "train", "mix")
"""The plan was asked to leave these out, or training has had them."""

LOST = ("too_long", "no_labels", "max_images", "max_vision_patches", "max_samples", "max_memory")
"""These were to be packed, and do not fit."""

WITH_MEDIA = "; samples with media are never split, and truncated only behind their last medium"
"""How the `detail` of such a sample that is too long ends."""

NOT_ELIGIBLE = ("rejected", "invalid_length", "empty", "excluded", "holdout", "train", "mix")
"""Samples that hold nothing, and those that the plan is not about. The others are eligible: packed,
lost or consumed."""


def lost_percent(num_tokens_lost: int, num_tokens_eligible: int) -> float:
    """Tokens of all eligible samples, each counted once, that are in no pack of any
    epoch and that training has not had."""
    return 100 * num_tokens_lost / max(num_tokens_eligible, 1)
