"""One side of a preference pair, as a record of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from preference_records import ASKED, BAD, CHAT, GOOD, PREFERENCES

from packidx import estimate_lengths
from packidx.errors import BadRecord, OptionError, SourceError
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import standard
from packidx.records.layout import Layout
from packidx.records.sources.find_shards import find_shards

REFUSED = {
    "TRL, whole texts": "bad_pair",
    "ms-swift, several": "bad_pair",
    "ms-swift, query and response": "no_messages",  # as it is without a pair
}
VERDICTS = ("KTO", "unpaired")


def taken(record: dict[str, Any], side: str, **layout: Any) -> list[tuple[str, str]]:
    """Role and text of the turns of a side."""
    turns = parse(standard(record, Layout(pair=side, **layout), False)).turns
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
    ({"messages": ASKED, "rejected_response": "b"}, "bad_pair", "last turn of 'messages'"),
    (
        {"messages": ASKED + GOOD, "rejected_response": "b", "rejected_messages": ASKED + BAD},
        "bad_pair",
        "both 'rejected_response' and 'rejected_messages'",
    ),
    (
        {"messages": ASKED + GOOD, "rejected_response": "b", "rejected_images": ["x.png"]},
        "bad_pair",
        "'rejected_images' are media of one side alone",
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
    assert parse(standard(record, Layout(pair="chosen"), False)).text_tokens is None


def write(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_the_side_is_part_of_the_table(tmp_path: Path) -> None:
    shard = write(tmp_path / "pairs.jsonl", PREFERENCES["TRL, texts"], CHAT)
    summaries = {
        side: estimate_lengths([shard], tmp_path / f"{side}", pair=side, workers=1)
        for side in ("chosen", "rejected")
    }
    assert {s.fingerprint for s in summaries.values()} != {summaries["chosen"].fingerprint}
    assert [s.rejected for s in summaries.values()] == [{"no_pair": 1}] * 2
    manifest = json.loads((tmp_path / "rejected" / "manifest.json").read_text())
    assert manifest["sources"][0]["layout"] == {"pair": "rejected"}
    again = estimate_lengths([shard], tmp_path / "chosen", pair="rejected", workers=1)
    assert again.taken_over is not None
    assert (again.taken_over.num_samples, again.taken_over.num_counted) == (0, 2)
    estimate_lengths([shard], tmp_path / "chosen", pair="chosen", workers=1)
    tables = [pq.read_table(tmp_path / side / "part-00000.parquet") for side in summaries]
    assert tables[0].equals(tables[1])
    with pytest.raises(OptionError, match="pair is 'best': give one of chosen"):
        estimate_lengths([shard], tmp_path / "lengths", pair="best")


def test_a_mix_states_the_side_of_its_data_sets(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        {"instruction": "Which?", "input": "", "good": "This.", "bad": "That."},
    )
    columns = {"prompt": "instruction", "query": "input", "chosen": "good", "rejected": "bad"}
    entry = {"file_name": "a.jsonl", "ranking": True, "formatting": "alpaca", "columns": columns}
    mix = tmp_path / "mix.json"
    mix.write_text(json.dumps({"a": entry}))
    with pytest.raises(SourceError, match='chosen is for preference data: give "pair"'):
        find_shards([str(mix)])
    mix.write_text(json.dumps({"a": {**entry, "pair": "rejected"}}))
    (shard,) = find_shards([str(mix)])
    assert shard.layout.pair == "rejected"
    summary = estimate_lengths([str(mix)], tmp_path / "lengths", workers=1)
    assert (summary.num_samples, summary.rejected) == (1, {})
    with pytest.raises(OptionError, match="states pair of its own, and --pair states them too"):
        find_shards([str(mix)], Layout(pair="chosen"))
    mix.write_text(json.dumps({"a": {**entry, "pair": "best"}}))
    with pytest.raises(SourceError, match="pair is 'best'"):
        find_shards([str(mix)])
