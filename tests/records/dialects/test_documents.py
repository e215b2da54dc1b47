"""Documents, question lists and captions of public data sets, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT
from packidx.records.conversation import Media
from packidx.records.read import parse_record

A, B = Media("image", "a.png"), Media("image", "b.png")
IMAGE = {"image_name": "a.png", "matched_text_index": 1}


def parts(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a document says."""
    conversation = parse_record(record, DEFAULT)
    assert conversation.is_document
    (turn,) = conversation.turns
    assert turn.role == "assistant"
    return turn.parts


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"text": " <image>\n"}, (" <image>\n",)),
        ({"text": "a", "id": 1, "url": "http://x", "label": 1}, ("a",)),
        ({"texts": [None, "x", None], "images": ["a.png", None, "b.png"]}, (A, "x", B)),
        ({"texts": ["", ""], "images": ["a.png", "b.png"]}, (A, B)),
        ({"texts": ["<image>"], "images": [None]}, ("<image>",)),
        ({"text_list": ["x", "y"], "image_info": [IMAGE]}, ("x", " ", A, "y")),
        ({"messages": [{"role": "document", "content": "<image>"}]}, ("<image>",)),
    ],
)
def test_documents(record: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert parts(record) == expected


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({"texts": ["a"]}, "no_messages", "without a list of 'images'"),
        ({"texts": ["a", None], "images": ["a.png"]}, "bad_turn", "has 2 entries and 'images' 1"),
        ({"texts": ["a"], "images": ["a.png"]}, "bad_turn", "a text and an image at 0"),
        ({"texts": ["a", None], "images": [None, None]}, "bad_turn", "neither .* at 1"),
        ({"texts": [None], "images": [None]}, "bad_turn", "neither .* at 0"),
        ({"text_list": [], "image_info": []}, "no_messages", "the document is empty"),
        ({"text_list": ["a"], "image_info": [IMAGE]}, "bad_media", "matched_text_index is 1"),
        ({"text_list": ["a"], "image_info": [{}]}, "bad_media", "without matched_text_index"),
        ({"text_list": ["a", None], "image_info": []}, "bad_turn", "sentence 1 .* is null"),
        ({"texts": [{"user": None, "assistant": "a"}]}, "bad_turn", "user of entry 0"),
        ({"jpg": None, "caption": "a"}, "no_messages", "none of"),
        ({"file_name": 3, "text": "a"}, "bad_media", "'file_name' has a number"),
    ],
)
def test_what_is_wrong_with_them(record: dict[str, Any], reason: str, detail: str) -> None:
    with pytest.raises(BadRecord, match=detail) as caught:
        parse_record(record, DEFAULT)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [{"role": "user", "content": "q"}], "text": "no"}, [("q",)]),
        ({"question": "q", "answer": "a", "text": "no"}, [("q",), ("a",)]),
        ({"question": "q", "response": "a"}, [("q",), ("a",)]),
        ({"image": "a.png", "text": "a"}, [(A,), ("a",)]),
        ({"URL": "a.png", "TEXT": "a", "url": "b.png"}, [(A,), ("a",)]),
        ({"url": "a.png", "text": "a"}, [("a",)]),
        ({"file_name": "a.png", "caption": "c", "text": "a"}, [(A,), ("c",)]),
        ({"file_name": "a.md", "notes": "x", "caption": "c", "image": "b.png"}, [(B,), ("c",)]),
        ({"images_file_names": ["a.png", "b.png"], "text": "a"}, [(A, B), ("a",)]),
        ({"texts": {"user": ["q"], "assistant": ["a"]}, "images": ["a.png"]}, [(A, "q"), ("a",)]),
        ({"texts": [{"user": "q", "assistant": ""}], "images": None}, [("q",), ()]),
    ],
)
def test_which_of_several_things_a_record_is(record: dict[str, Any], expected: list[Any]) -> None:
    conversation = parse_record(record, DEFAULT)
    assert [turn.parts for turn in conversation.turns] == expected
