"""Layouts: a data set's own names become the standard ones, from options and manifests alike."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read_records

from packidx.errors import BadRecord, OptionError
from packidx.format.manifest import DEFAULT, Layout, decode_json
from packidx.format.terms import COLUMNS, TAGS
from packidx.records.dialects.messages import standard_message
from packidx.records.dialects.raw_record import key_of, standard_columns
from packidx.records.read import parse_record
from packidx.records.shards import scan_shard

STANDARD = {
    "id": "7",
    "system": "Be brief.",
    "images": ["a.png"],
    "messages": [
        {"role": "user", "content": "<image>What?"},
        {"role": "assistant", "content": "A cat.", "weight": 0},
    ],
}
OWN = {
    "uuid": "7",
    "sys": "Be brief.",
    "pics": ["a.png"],
    "chat": [
        {"speaker": "Q", "said": "<image>What?"},
        {"speaker": "A", "said": "A cat.", "weight": 0},
    ],
}
COLUMNS_OF_OWN = {"id": "uuid", "system": "sys", "images": "pics", "messages": "chat"}
TAGS_OF_OWN = {"role_tag": "speaker", "content_tag": "said", "user_tag": "Q", "assistant_tag": "A"}


def test_own_names_become_standard_ones() -> None:
    layout = Layout(COLUMNS_OF_OWN, TAGS_OF_OWN)
    before = json.dumps(OWN)
    columns = standard_columns(layout, OWN)
    assert columns == {**OWN, **STANDARD, "messages": OWN["chat"]}, "it keeps its own names"
    assert parse_record(OWN, layout) == parse_record(STANDARD)
    assert json.dumps(OWN) == before


@pytest.mark.parametrize(
    ("layout", "record", "expected"),
    [
        # what is stated wins over what else would be taken for it
        (
            Layout({"messages": "chat"}),
            {"chat": [1], "messages": [2], "conversations": [3]},
            {"chat": [1], "messages": [1]},
        ),
        (
            Layout({"images": "img"}),
            {"img": "a", "image": "b", "x": 1},
            {"img": "a", "images": "a", "x": 1},
        ),
        # a field may be two things, and keeps its name if that means nothing
        (
            Layout({"prompt": "q", "system": "q", "response": "text"}),
            {"q": "p", "text": "r", "answer": "no"},
            {"q": "p", "prompt": "p", "system": "p", "response": "r"},
        ),
        # what is stated to be something else is no longer what its name says
        (
            Layout({"messages": "chosen"}),
            {"chosen": [1], "rejected": [2]},
            {"messages": [1], "rejected": [2]},
        ),
        (Layout({"videos": "images"}), {"images": ["a"]}, {"videos": ["a"]}),
        (Layout({"images": "image"}), {"image": "a", "images": ["b"]}, {"images": "a"}),
        # media, system and the like may be absent
        (Layout({"images": "img", "system": "s"}), {"n": 1}, {"n": 1}),
        # columns may be exchanged
        (
            Layout({"prompt": "response", "response": "prompt"}),
            {"prompt": "p", "response": "r"},
            {"prompt": "r", "response": "p"},
        ),
        (Layout({"text_tokens": "n"}), {"n": 5}, {"n": 5, "_text_tokens": 5}),
        (Layout({"text_tokens": "n"}), {"_text_tokens": 5, "id": "a"}, {"id": "a"}),
        # tags without a key for them: whatever the turns use
        # JSON in text, and an object of lists
        (DEFAULT, {"messages": '[{"role": "user"}]'}, {"messages": [{"role": "user"}]}),
        (DEFAULT, {"images": '["a", "b"]', "n": "[1]"}, {"images": ["a", "b"], "n": "[1]"}),
        (DEFAULT, {"image": "[1].png", "messages": "hi"}, {"image": "[1].png", "messages": "hi"}),
        (
            DEFAULT,
            {"conversations": {"from": ["human", "gpt"], "value": ["a", None]}},
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt"}]},
        ),
        (DEFAULT, {"conversations": {"from": "a"}}, {"conversations": {"from": "a"}}),
        (
            DEFAULT,
            {"conversations": {"from": ["a"], "value": []}},
            {"conversations": {"from": ["a"], "value": []}},
        ),
    ],
)
def test_standard_columns(layout: Layout, record: dict[str, Any], expected: dict[str, Any]) -> None:
    assert standard_columns(layout, record) == expected


@pytest.mark.parametrize(
    ("tags", "message", "expected"),
    [
        ({"user_tag": "H"}, {"from": "H", "value": "a"}, {"role": "user", "content": "a"}),
        (
            {"function_tag": "call"},
            {"from": "call", "value": "b"},
            {"role": "function_call", "content": "b"},
        ),
        (
            {"role_tag": "role", "content_tag": "text"},
            {"role": "gpt", "text": "a", "content": None, "name": "n"},
            {"role": "gpt", "content": "a", "name": "n"},
        ),
        ({"user_tag": "H"}, 5, 5),
    ],
)
def test_tags_name_keys_and_roles(tags: Any, message: Any, expected: Any) -> None:
    assert standard_message(message, Layout(tags=tags)) == expected


@pytest.mark.parametrize(
    ("layout", "record", "reason", "words"),
    [
        (Layout({"messages": "chat"}), {"messages": [1]}, "no_messages", "no column 'chat'"),
        (Layout({"input_ids": "t"}), {}, "no_messages", "no column 't'"),
        (DEFAULT, {"messages": "[{]"}, "bad_json", "'messages'"),
    ],
)
def test_records_that_a_layout_does_not_fit(
    layout: Layout, record: dict[str, Any], reason: str, words: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        standard_columns(layout, record)
    assert caught.value.reason == reason
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12", 12), ("-1", "bad"), ("1.5", "bad"), ("many", "bad"), ("9" * 5000, "bad"), ("", None)],
)
def test_token_counts_in_cells(tmp_path: Path, text: str, expected: Any) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"prompt,response,_text_tokens\nhi,there,{text}\n")
    (part,) = scan_shard(str(path), "csv").ranges
    ((raw),) = list(read_records(str(path), part, "csv"))
    if expected != "bad":
        assert parse_record(raw.data).text_tokens == expected
    else:
        assert raw.data.reason == "bad_text_tokens"


@pytest.mark.parametrize(
    ("columns", "record", "texts"),
    [
        ({"response": "mine"}, {"question": "q", "answer": "no", "mine": "a"}, ["q", "a"]),
        ({"prompt": "mine"}, {"question": "no", "answer": "a", "mine": "q"}, ["q", "a"]),
        ({"prompt": "text", "response": "x"}, {"text": "q", "x": "a"}, ["q", "a"]),
        ({"text": "content"}, {"content": "a", "text": "no"}, ["a"]),
        ({"messages": "m"}, {"m": [{"role": "user", "content": "q"}], "texts": ["no"]}, ["q"]),
    ],
)
def test_a_stated_column_wins(columns: Any, record: Any, texts: list[str]) -> None:
    turns = parse_record(record, Layout(columns)).turns
    assert [turn.parts for turn in turns] == [(text,) for text in texts]


def test_an_id_that_is_ignored_is_no_name() -> None:
    record = {"id": "a", "uid": "b", "mine": "c"}
    assert key_of(record, Layout(ignore=("id",))) == "b"
    assert key_of(record, Layout({"id": "mine"}, ignore=("mine",))) is None


@pytest.mark.parametrize(
    ("columns", "tags", "words"),
    [
        ({"message": "x"}, {}, "no column 'message' to state; known: messages, images"),
        ({}, {"human_tag": "x"}, "no tag 'human_tag' to state; known: role_tag"),
        ({"messages": ""}, {}, "columns is {'messages': ''}: Expected `str` of"),
        ({"messages": 5}, {}, "columns is {'messages': 5}: Expected `str`, got"),
        ({}, {"user_tag": "x", "assistant_tag": "x"}, "'x' is stated to be two things"),
    ],
)
def test_options_that_mean_nothing(columns: Any, tags: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Layout(columns, tags)
    assert words in str(caught.value)


@given(
    columns=st.dictionaries(st.sampled_from(COLUMNS), st.text(min_size=1), max_size=4),
    tags=st.dictionaries(st.sampled_from(sorted(TAGS)), st.text(min_size=1), max_size=4),
    media_root=st.none() | st.text(st.characters(exclude_characters="\0"), min_size=1),
    ratio=st.floats(0, 100),
    delimiter=st.none() | st.sampled_from(";|"),
)
def test_layouts_round_trip(
    columns: Any, tags: Any, media_root: Any, ratio: float, delimiter: Any
) -> None:
    if len(set(tags.values())) < len(tags):
        return
    layout = Layout(columns, tags, media_root, ratio, delimiter)
    text = json.dumps(layout.to_json())
    assert decode_json(Layout, json.loads(text)) == layout == pickle.loads(pickle.dumps(layout))
