"""Preference data: nobody has said which answer is to be trained on, so no record of it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preference_records import ASKED, BAD, CHAT, GOOD, PREFERENCES

from packidx import estimate_lengths
from packidx.errors import BadRecord
from packidx.records.read import parse


@pytest.mark.parametrize("record", PREFERENCES.values(), ids=PREFERENCES)
def test_preference_data_is_refused_by_its_name(record: dict[str, Any]) -> None:
    with pytest.raises(BadRecord) as caught:
        parse(record)
    assert caught.value.reason == "preference_data"
    assert any(f"{name!r}" in caught.value.detail for name in record)
    assert "which answer to train on" in caught.value.detail


@pytest.mark.parametrize(
    "record",
    [
        {**CHAT, "rejected": False},
        {**CHAT, "rejected": "no"},
        {**CHAT, "chosen": True, "rejected": False},
        {**CHAT, "chosen": 3, "rejected": [1, 2]},
        {**CHAT, "chosen": "yes", "rejected": 0},
        {**CHAT, "chosen": None, "rejected": None, "rejected_response": None, "kto_tag": None},
        {**CHAT, "chosen": "", "rejected": "", "rejected_response": "", "rejected_messages": []},
        {**CHAT, "label": True},
        {**CHAT, "label": "cat"},
        {**CHAT, "label": 0},
        {"prompt": "Which?", "completion": "This.", "label": 3},
        {"question": "Which?", "answer": "This.", "label": True},
        {"input_ids": [1, 2], "chosen": "a", "rejected": "b"},
    ],
)
def test_columns_of_these_names_alone_are_no_preferences(record: dict[str, Any]) -> None:
    parsed = parse(record)
    assert parsed.turns or parsed.input_ids


def test_a_side_beside_turns_that_lack_it_is_not_lost(tmp_path: Path) -> None:
    """The turns alone would be counted, and the answer that was named left out."""
    shard = tmp_path / "pairs.jsonl"
    pair = {"conversations": ASKED + GOOD + ASKED, "chosen": GOOD[0], "rejected": BAD[0]}
    texts = {"prompt": "Which?", "chosen": "This.", "rejected": "That."}
    shard.write_text(json.dumps(pair) + "\n" + json.dumps(texts) + "\n")
    columns = {"response": "chosen"}
    told = estimate_lengths([str(shard)], tmp_path / "one", columns=columns, workers=1)
    assert (told.num_samples, told.rejected) == (2, {"preference_data": 1})
