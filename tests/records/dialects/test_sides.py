"""Preference pairs as trainers document them: refused, or one side as a record of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from packidx import estimate_lengths
from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.records.read import parse_record

ASKED = [{"role": "user", "content": "Which?"}]
GOOD = [{"role": "assistant", "content": "This."}]
BAD = [{"role": "assistant", "content": "That."}]

PREFERENCES: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "Which?", "chosen": "This.", "rejected": "That."},
    "TRL, whole texts": {"chosen": "Which? This.", "rejected": "Which? That."},
    "TRL, messages": {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
    "TRL, whole conversations": {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
    "TRL, with images": {"prompt": ASKED, "images": ["a"], "chosen": GOOD, "rejected": BAD},
    "UltraFeedback": {"messages": ASKED + GOOD, "chosen": ASKED + GOOD, "rejected": ASKED + BAD},
    "RLAIF-V": {"image": "a", "question": "Which?", "chosen": "This.", "rejected": "That."},
    "LLaMA-Factory, sharegpt": {
        "conversations": [{"from": "human", "value": "Which?"}],
        "chosen": {"from": "gpt", "value": "This."},
        "rejected": {"from": "gpt", "value": "That."},
    },
    "LLaMA-Factory, alpaca": {
        "instruction": "Which?",
        "input": "",
        "chosen": "This.",
        "rejected": "That.",
    },
    "LLaMA-Factory, KTO": {"messages": ASKED + GOOD, "kto_tag": False},
    "ms-swift": {"messages": ASKED + GOOD, "rejected_response": "That."},
    "ms-swift, several": {"messages": ASKED + GOOD, "rejected_response": ["That.", "Neither."]},
    "ms-swift, messages": {"messages": ASKED + GOOD, "rejected_messages": ASKED + BAD},
    "ms-swift, query and response": {
        "query": "Which?",
        "response": "This.",
        "rejected_response": "That.",
    },
    "LLaMA-Factory, KTO in a table": {"messages": ASKED + GOOD, "kto_tag": "false"},
    "TRL, unpaired": {"prompt": "Which?", "completion": "That.", "label": False},
    "TRL, unpaired, in a table": {"prompt": "Which?", "completion": "That.", "label": "False"},
    "TRL, unpaired, in numbers": {"prompt": "Which?", "completion": "That.", "label": 0},
    "ms-swift, KTO": {"messages": ASKED + BAD, "label": False},
    "ms-swift, KTO of an answer": {"query": "Which?", "response": "That.", "label": False},
}

CHAT: dict[str, Any] = {"messages": ASKED + GOOD}

REFUSED = {
    "TRL, whole texts": "bad_pair",
    "ms-swift, several": "bad_pair",
}
VERDICTS = ("KTO", "unpaired")


def taken(record: dict[str, Any], side: str, **layout: Any) -> list[tuple[str, str]]:
    """Role and text of the turns of a side."""
    turns = parse_record(record, Layout(pair=side, **layout)).turns
    return [
        (t.role, "".join(p if isinstance(p, str) else f"<{p.kind}>" for p in t.parts))
        for t in turns
    ]


@pytest.mark.parametrize("name", PREFERENCES)
def test_every_form_of_pairs_gives_either_side(name: str) -> None:
    record = PREFERENCES[name]
    before = json.dumps(record)
    if any(word in name for word in VERDICTS):
        with pytest.raises(BadRecord) as caught:
            taken(record, "chosen")
        assert caught.value.reason == "no_pair"
        return
    if name in REFUSED:
        with pytest.raises(BadRecord) as caught:
            taken(record, "rejected")
        assert caught.value.reason == REFUSED[name]
        return
    image = "<image>" if record.keys() & {"image", "images"} else ""
    assert taken(record, "chosen") == [("user", image + "Which?"), ("assistant", "This.")]
    assert taken(record, "rejected") == [("user", image + "Which?"), ("assistant", "That.")]
    assert json.dumps(record) == before


ALPACA = {"instruction": "Which?", "input": ""}
OWN: dict[str, dict[str, Any]] = {
    "output": {**ALPACA, "output": "This.", "rejected_response": "That."},
    "answer": {"question": "Which?", "answer": "This.", "rejected_response": "That."},
    "completion": {"prompt": "Which?", "completion": "This.", "rejected_response": "That."},
    "none": {"prompt": "Which?", "chosen": "This.", "rejected": "That.", "output": ""},
    "equal": {**ALPACA, "output": "This.", "chosen": "This.", "rejected": "That."},
    "equal, of turns": {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "response": "this"},
    "gold": {"prompt": "Which?", "chosen": "This.", "rejected": "That.", "gold": "This"},
    "answer and gold": {**ALPACA, "output": "This.", "gt": "This", "rejected_response": "That."},
}


@pytest.mark.parametrize("name", OWN)
def test_an_own_answer_is_the_chosen_one(name: str) -> None:
    assert taken(OWN[name], "chosen") == [("user", "Which?"), ("assistant", "This.")]
    assert taken(OWN[name], "rejected") == [("user", "Which?"), ("assistant", "That.")]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (CHAT, "no_pair", "has messages, and --pair takes one side"),
    ({**CHAT, "chosen": GOOD}, "no_pair", "only 'chosen'"),
    ({"prompt": "a", "chosen": "b", "rejected": ""}, "no_pair", "only 'chosen'"),
    ({"prompt": "a", "chosen": "b", "rejected": None}, "no_pair", "only 'chosen'"),
    ({"input_ids": [1]}, "no_pair", "has input_ids"),
    ({}, "no_pair", "has nothing"),
    ({"input_ids": [1], "chosen": "a", "rejected": "b"}, "bad_pair", "input_ids"),
    ({"chosen": GOOD, "rejected": BAD}, "bad_pair", "nothing says what was asked"),
    (
        {"prompt": "Else", "chosen": ASKED + GOOD, "rejected": BAD},
        "bad_pair",
        "begin with 'prompt'",
    ),
    ({"prompt": ASKED + GOOD, "chosen": GOOD, "rejected": BAD}, "bad_pair", "ends with an answer"),
    ({"prompt": 3, "chosen": GOOD, "rejected": BAD}, "bad_pair", "'prompt' is a number"),
    ({"prompt": "a", "chosen": ["b", "c"], "rejected": ["d"]}, "bad_pair", "list of texts"),
    (
        {**CHAT, "prompt": "a", "chosen": "b", "rejected": "c"},
        "bad_pair",
        "'prompt' and 'messages'",
    ),
    ({"messages": ASKED, "rejected_response": "b"}, "bad_pair", "last turn of 'messages'"),
    (
        {"messages": ASKED + GOOD, "rejected_response": "b", "rejected_messages": ASKED + BAD},
        "bad_pair",
        "both 'rejected_response' and 'rejected_messages'",
    ),
]


@pytest.mark.parametrize(("record", "reason", "detail"), WRONG)
def test_what_is_no_pair_is_told(record: dict[str, Any], reason: str, detail: str) -> None:
    side = "chosen" if reason == "no_pair" or "chosen" in record else "rejected"
    with pytest.raises(BadRecord) as caught:
        taken(record, side)
    assert caught.value.reason == reason
    assert detail in caught.value.detail


def test_names_and_words_of_a_data_set_hold_for_both_sides() -> None:
    def turn(who: str, text: str) -> dict[str, str]:
        return {"who": who, "says": text}

    tags = {"role_tag": "who", "content_tag": "says", "user_tag": "U", "assistant_tag": "A"}
    columns = {"messages": "chat", "chosen": "good", "rejected": "bad"}
    record = {
        "chat": [turn("U", "Which?")],
        "good": turn("A", "This."),
        "bad": [turn("A", "That.")],
    }
    expected = [("user", "Which?"), ("assistant", "That.")]
    assert taken(record, "rejected", tags=tags, columns=columns) == expected
    assert taken(record, "chosen", tags=tags, columns=columns)[1] == ("assistant", "This.")
    cells = {name: json.dumps(value) for name, value in record.items()}
    assert taken(cells, "rejected", tags=tags, columns=columns) == expected


def test_a_text_in_brackets_is_a_text() -> None:
    record = {"prompt": "[a", "chosen": '["b"]', "rejected": '{"answer": 1}'}
    assert taken(record, "chosen") == [("user", "[a"), ("assistant", '["b"]')]
    assert taken(record, "rejected")[1] == ("assistant", '{"answer": 1}')


def test_what_a_record_states_of_its_text_is_of_no_side() -> None:
    record = {**PREFERENCES["TRL, texts"], "_text_tokens": 7}
    assert parse_record(record, Layout(pair="chosen")).text_tokens is None


@pytest.mark.parametrize("record", PREFERENCES.values(), ids=PREFERENCES)
def test_preference_data_is_refused_by_its_name(record: dict[str, Any]) -> None:
    with pytest.raises(BadRecord) as caught:
        parse_record(record)
    assert caught.value.reason == "preference_data"
    assert any(f"{name!r}" in caught.value.detail for name in record)
    assert "an answer to avoid" in caught.value.detail


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
    parsed = parse_record(record)
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
