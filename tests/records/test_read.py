"""Records for encoders: one form, whatever their dialect, and the same conversation in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reading import open_media

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.records.containers.base import Locator, Record
from packidx.records.conversation import Media
from packidx.records.media.clips import Video
from packidx.records.media.paths import MediaRoot
from packidx.records.read import RecordReader, parse_record

ASK, SAY = {"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "A cat."}
LISTED = {"images": ["a.png"]}
CALL = {"name": "f", "arguments": {"x": 1}}
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [ASK, SAY], **LISTED},
    "ShareGPT": {
        "conversations": [
            {"from": "human", "value": "<image>Who?"},
            {"from": "gpt", "value": "A."},
        ],
        "image": "a.png",
        "system": "Be brief.",
    },
    "parts": {"messages": [{"role": "user", "content": [{"image": "a.png"}, {"text": ""}]}, SAY]},
    "text in a list": {"messages": [{"role": "user", "content": [{"text": "Hi"}]}, SAY]},
    "calls": {
        "messages": [
            {"role": "developer", "content": "x"},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}], "train": 0},
            {"role": "tool", "content": "1", "name": "f"},
        ],
        "tools": [{"name": "f"}],
    },
    "a placeholder that is text": {"messages": [{"role": "user", "content": "<video>?"}, SAY]},
    "question": {"question": "Who?", "answer": "A cat.", "history": [["a", "b"]], **LISTED},
    "caption": {"file_name": "a.png", "caption": "A cat."},
    "document": {"text": "<image> is text."},
    "OBELICS": {"texts": [None, "x"], "images": ["a.png", None]},
    "FineVision": {"texts": [{"user": "Who?", "assistant": "A cat."}], **LISTED},
    "tokens": {"input_ids": [1, 2], "labels": [-100, 2], "_text_tokens": 2},
    "facts": {
        "messages": [ASK, SAY],
        "images": [{"path": "a.png", "max_pixels": 9, "height": 20, "width": 30}],
        "mm_inputs_meta": {"images_meta": [[20, 30, 7]]},
        "_text_tokens": 3,
    },
    "a video": {
        "messages": [{"role": "user", "content": "<video>?"}, SAY],
        "videos": [{"path": "v.mp4", "frame_indices": [0, 4], "num_frames": 9}],
        "mm_inputs_meta": {"videos_meta": [{"fps": 2.5, "height": 4, "width": 6}]},
    },
    "frames": {
        "messages": [{"role": "user", "content": "<video>?"}, SAY],
        "videos": [{"frames": ["a.png", "a.png"], "fps": 2}],
        "mm_inputs_meta": {"videos_meta": [{"num_frames": 7}]},
    },
    "frames of one": {
        "messages": [{"role": "user", "content": "?"}, SAY],
        "video": {"frames": ["a.png", "a.png"], "fps": 2},
    },
}


@pytest.mark.parametrize("name", [name for name in RECORDS if name != "tokens"])
def test_an_encoder_gets_opened_media_in_one_form(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    record = {**RECORDS[name], "id": 7, "box": [1, 2]}
    opened = open_media(record, MediaRoot(str(tmp_path)))
    was = parse_record(record)
    assert (opened["id"], opened["box"]) == (7, [1, 2])
    parts = [
        part
        for message in opened["messages"]
        for part in message["content"] or ()
        if isinstance(part, dict) and part["type"] != "text"
    ]
    assert [part["type"] for part in parts] == [medium.kind for medium in was.media]
    for part in parts:
        media = part[part["type"]]
        for each in media if isinstance(media, list) else [media]:
            assert isinstance(each, Video) or each.size == (30, 20)
        listed = opened.get(f"{part['type']}s") or [opened[part["type"]]]
        assert any(media is each for each in listed)
    again = parse_record(opened)
    assert [turn.role for turn in again.turns] == [turn.role for turn in was.turns]
    assert [turn.texts for turn in again.turns] == [turn.texts for turn in was.turns]
    assert [turn.train for turn in again.turns] == [turn.train for turn in was.turns]
    assert (again.tools, again.text_tokens, again.is_document) == (
        was.tools,
        was.text_tokens,
        was.is_document,
    )
    assert [(m.kind, m.requests, getattr(m.ref, "stated", m.stated)) for m in again.media] == [
        (m.kind, m.requests, m.stated) for m in was.media
    ]


def test_a_record_of_no_dialect_keeps_its_columns(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    record = {"image": "a.png", "boxes": [[1, 2]], "clips": [1]}
    opened = open_media(record, MediaRoot(str(tmp_path)))
    assert opened["image"].size == (30, 20)
    assert (opened["boxes"], opened["clips"]) == ([[1, 2]], [1])


def test_a_list_that_names_other_media_than_the_parts_is_refused() -> None:
    one, other = (Image.fromarray(np.full((4, 4, 3), n, np.uint8)) for n in range(2))
    part = {"type": "image", "image": one}
    record = {"messages": [{"role": "user", "content": [part]}, SAY], "images": [one]}
    assert parse_record(record).media == (Media("image", one),)
    with pytest.raises(BadRecord, match="media_mismatch"):
        parse_record({**record, "images": [other]})
    named = {"messages": [{**ASK, "content": [{"image": "a.png"}]}, SAY]}
    assert len(parse_record({**named, "images": ["a.png"]}).media) == 1
    with pytest.raises(BadRecord, match="media_mismatch"):
        parse_record({**named, "images": ["b.png"]})


@pytest.mark.parametrize(
    ("answers", "record", "said"),
    [
        ("first", {"question": "q", "answers": ["red", "blue"]}, "red"),
        ("first", {"question": "q", "answers": [{"answer": "a"}, {"answer": "b"}]}, "a"),
        ("first", {"question": "q", "answer": ["x", "y"]}, "x"),
        ("first", {"question": "q", "answers": ["red", "blue"], "correct_answer": "blue"}, None),
        (None, {"question": "q", "answers": ["red", "blue"]}, None),
    ],
)
def test_the_first_of_different_answers(answers: str | None, record: Any, said: str | None) -> None:
    read = RecordReader(Layout(answers=answers), columns={}).read(Record(record, Locator(0)))
    if said is None:
        assert read.error is not None and read.error.reason in ("bad_turn", "unused_column")
    else:
        assert read.conversation is not None and read.conversation.turns[1].parts == (said,)
