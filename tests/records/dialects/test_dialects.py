"""Raw records → conversations: dialects agree, text is kept, and what is wrong has a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn, to_messages
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE
from packidx.records.read import parse_record

QUESTION = "\n What is <b>this</b>?\t"
EXPECTED = (
    Turn("system", ("Be brief.",)),
    Turn("user", (Media("image", "a.png"), QUESTION, Media("image", "b.png"))),
    Turn("assistant", (" A cat.\n",)),
)


def user(content: Any, **record: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **record}


def meta_of(entry: Any) -> dict[str, Any]:
    return user("<video>", videos=["v"], mm_inputs_meta={"videos_meta": [entry]})


def turn_of(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": "a", **members}]}


@pytest.mark.parametrize(
    "record",
    [
        {
            "system": "Be brief.",
            "images": ["a.png", "b.png"],
            "conversations": [
                {"from": "human", "value": f"<image>{QUESTION}<image>"},
                {"from": "gpt", "value": " A cat.\n"},
            ],
        },
        {
            "images": ["a.png", {"path": "b.png", "bytes": None}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"<image>{QUESTION}<image>"},
                {"role": "assistant", "content": " A cat.\n"},
            ],
        },
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "a.png"}},
                        {"type": "text", "text": QUESTION, "image": None},
                        {"type": "image", "image": "b.png"},
                    ],
                },
                {"role": "assistant", "content": " A cat.\n"},
            ]
        },
        {
            "images": ["b.png"],
            "conversation": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"image": "a.png"}, {"text": QUESTION}, {"type": "image"}],
                },
                {"role": "model", "content": " A cat.\n"},
            ],
        },
    ],
)
def test_dialects_parse_equal(record: dict[str, Any]) -> None:
    assert parse_record(record) == Conversation(EXPECTED)


@pytest.mark.parametrize("parts", [[{"type": "text", "text": " A cat.\n"}], [" A cat.\n"]])
def test_text_in_a_list_of_parts_is_told_from_a_string(parts: list[Any]) -> None:
    listed, string = (
        parse_record({"messages": [{"role": "user", "content": content}]})
        for content in (parts, " A cat.\n")
    )
    assert listed.turns[0].parts == string.turns[0].parts == (" A cat.\n",)
    assert to_messages(listed)[0]["content"] == [{"type": "text", "text": " A cat.\n"}]
    assert to_messages(string)[0]["content"] == " A cat.\n"
    assert parse_record({"messages": to_messages(listed)}) == listed != string


def test_messages_round_trip() -> None:
    messages = to_messages(Conversation(EXPECTED))
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[1]["content"] == [
        {"type": "image"},
        {"type": "text", "text": QUESTION},
        {"type": "image"},
    ]
    assert parse_record({"messages": messages, "images": ["a.png", "b.png"]}).turns == EXPECTED


def test_tool_calls_are_kept() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"from": "observation", "value": "42", "name": "f"},
    ]
    parsed = parse_record({"messages": turns, "tools": '[{"name": "f"}]'})
    assert parsed.tools == [{"name": "f"}]
    assert to_messages(parsed)[1:] == [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "42", "name": "f"},
    ]


def sized(height: int, width: int, **facts: float) -> dict[str, float]:
    return {"height": height, "width": width, **facts}


def test_nemo_meta_states_sizes_and_tokens() -> None:
    meta = {"images_meta": [[20, 30], None, {"height": 4, "width": 5, "n_tokens": 7}]}
    record = user("<image><image><image>", images=["a", "b", "c"], mm_inputs_meta=meta)
    parsed = parse_record({**record, "_text_tokens": 12})
    assert parsed.text_tokens == 12
    assert parsed.media == (
        Media("image", "a", sized(20, 30)),
        Media("image", "b"),
        Media("image", "c", sized(4, 5, n_tokens=7)),
    )


def test_nemo_meta_states_frames_of_videos() -> None:
    video = {"num_frames": 8, "height": 6, "width": 7, "fps": 2.5, "n_tokens": 9}
    meta = {
        "images_meta": [[20, 30]],
        "videos_meta": [[100, 20, 30, 25.0, 4.0], None, video, [0, 4, 5, 2, 3.2], [20, 30]],
    }
    videos = ["a", "b", {"path": "c", "fps": 1}, "d", "e"]
    record = user("<image><video><video><video><video><video>", images=["i"], videos=videos)
    parsed = parse_record({**record, "mm_inputs_meta": meta})
    assert parsed.media == (
        Media("image", "i", sized(20, 30)),
        Media("video", "a", sized(20, 30, num_frames=100, fps=25.0)),
        Media("video", "b"),
        Media("video", "c", sized(6, 7, n_tokens=9, num_frames=8, fps=2.5), {"fps": 1}),
        Media("video", "d", sized(4, 5, num_frames=6, fps=2.0)),  # 0 frames: those of 3.2 s
        Media("video", "e", sized(20, 30)),
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("v.mp4", Media("video", "v.mp4")),
        ({"path": "v.mp4"}, Media("video", "v.mp4")),
        (
            {"path": "v.mp4", "frame_indices": [0, 4, 8], "fps": 2, "num_frames": 9},
            Media("video", "v.mp4", {"num_frames": 9, "fps": 2.0, "frame_indices": (0, 4, 8)}),
        ),
        (
            {"video": "v.mp4", "nframes": 9, "height": 4, "width": 6},
            Media("video", "v.mp4", sized(4, 6), {"nframes": 9}),
        ),
        ({"video_url": {"url": "v.mp4"}}, Media("video", "v.mp4")),
        (["a.png", "b.png"], Media("video", ["a.png", "b.png"])),
        (
            {"frames": ["a.png", {"path": "b.png"}], "fps": 0.5},
            Media("video", ["a.png", "b.png"], {"fps": 0.5}),
        ),
        (
            {"video": ["a.png"], "sample_fps": 2, "num_frames": 1},
            Media("video", ["a.png"], {"fps": 2.0}),
        ),
    ],
)
def test_video_entries(entry: Any, expected: Media) -> None:
    assert parse_record(user("<video>", videos=[entry])).media == (expected,)
    if isinstance(entry, dict):
        assert parse_record(user([{"type": "video", **entry}])).media == (expected,)


def test_image_entries_state_sizes() -> None:
    entries = ["a.lmdb::k", {"path": "b.png", "height": 4, "width": 6, "n_tokens": 3}]
    assert parse_record(user("<image><image>", images=entries)).media == (
        Media("image", "a.lmdb::k"),
        Media("image", "b.png", sized(4, 6, n_tokens=3)),
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("train", True, True),
        ("training", False, False),
        ("loss", 1, True),
        ("loss_weight", 0.0, False),
        ("weight", 0, False),
        ("weight", None, None),
    ],
)
def test_turns_say_whether_they_are_trained(key: str, value: Any, expected: bool | None) -> None:
    turn = {"role": "assistant", "content": "a", key: value, "name": "n"}
    (parsed,) = parse_record({"messages": [turn]}).turns
    assert parsed == Turn("assistant", ("a",), {"name": "n"}, expected)
    meta = parse_record({"messages": [turn], "mm_inputs_meta": {}}).turns
    assert meta == (parsed,)


def test_function_calls_are_tool_calls() -> None:
    turns = [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "42"},
        {"from": "function_call", "value": '[{"name": "f"}, {"name": "g"}]'},
    ]
    parsed = parse_record({"conversations": turns})
    assert [turn.role for turn in parsed.turns] == ["user", "assistant", "tool", "assistant"]
    assert to_messages(parsed)[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    names = [call["function"]["name"] for call in parsed.turns[3].extra["tool_calls"]]
    assert names == ["f", "g"]


IMAGE = Media("image", "a.png")


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"prompt": "q", "response": "r"}, [("q",), ("r",)]),
        ({"prompt": "q", "completion": "r"}, [("q",), ("r",)]),
        ({"instruction": "q", "input": "", "output": "r"}, [("q",), ("r",)]),
        ({"instruction": "q", "input": "x", "output": "r"}, [("q\nx",), ("r",)]),
        (
            {"instruction": "q", "output": "r", "history": [["a", "b"]], "image": "a.png"},
            [(IMAGE, "a"), ("b",), ("q",), ("r",)],
        ),
        ({"question": "q", "answer": "r", "image": "a.png"}, [(IMAGE, "q"), ("r",)]),
        ({"question": "q<image>", "answer": "r", "image": "a.png"}, [("q", IMAGE), ("r",)]),
        (
            {"question": "q", "answer": "r", "images": ["a.png"], "videos": ["v"]},
            [(IMAGE, Media("video", "v"), "q"), ("r",)],
        ),
        ({"caption": "r", "image": {"path": "a.png"}}, [(IMAGE,), ("r",)]),
        ({"text": "r", "image": "a.png"}, [(IMAGE,), ("r",)]),
        ({"query": "q", "response": "r", "image": "a.png"}, [(IMAGE, "q"), ("r",)]),
        ({"question": "q", "answer": 3}, [("q",), ("3",)]),
        ({"question": "q", "answer": 3.5}, [("q",), ("3.5",)]),
        ({"question": "q", "answers": ["r", "r", ""]}, [("q",), ("r",)]),
        ({"question": "q", "answers": [{"answer": "r", "answer_id": 1}]}, [("q",), ("r",)]),
        (
            {"question": "q", "answers": {"text": ["r", "r"], "answer_start": [0, 9]}},
            [("q",), ("r",)],
        ),
        ({"question": "q", "answer": {"text": "r", "is_correct": True}}, [("q",), ("r",)]),
        ({"question": "q A) x, (B) y", "answer": "B"}, [("q A) x, (B) y",), ("B",)]),
        ({"question": "1. x\n2. y", "answer": 2}, [("1. x\n2. y",), ("2",)]),
        ({"question": "q (A) 3 (B) 4", "answer": 4}, [("q (A) 3 (B) 4",), ("4",)]),
        ({"question": "q", "options": [], "answer": "4"}, [("q",), ("4",)]),
        ({"question": "q", "num_options": 4, "B": 0.5, "answer": 4}, [("q",), ("4",)]),
        ({"question": "q", "answer": "r", "answers": ["s", "r"]}, [("q",), ("r",)]),
    ],
)
def test_single_turn_tables(record: dict[str, Any], texts: list[Any]) -> None:
    before = repr(record)
    parsed = parse_record({**record, "system": "s"})
    assert [turn.parts for turn in parsed.turns] == [("s",), *texts]
    roles = ["user", "assistant"] * (len(texts) // 2)
    assert [turn.role for turn in parsed.turns[1:]] == roles
    assert repr(record) == before


def test_what_people_have_beside_turns() -> None:
    image_first = parse_record({**user("q"), "image": "a.png", "system_prompt": "s"})
    assert [turn.parts for turn in image_first.turns] == [("s",), (IMAGE, "q")]
    asked = user([{"type": "image"}, {"type": "text", "text": "q"}])["messages"]
    said = [{"role": "assistant", "content": "r"}]
    parsed = parse_record({"prompt": said + asked, "completion": said, "images": ["a.png"]})
    assert [turn.parts for turn in parsed.turns] == [("r",), (IMAGE, "q"), ("r",)]
    assert [turn.train for turn in parsed.turns] == [False, None, None]
    assert parse_record({"prompt": "q", "completion": said}).turns[1].parts == ("r",)
    words = ("gpt", "chatgpt", "bing", "bard")
    turns = [{"from": word, "value": "r"} for word in words]
    assert {turn.role for turn in parse_record({"conversations": turns}).turns} == {"assistant"}


@pytest.mark.parametrize("make", [list, tuple, np.array, pa.array, pa.scalar])
def test_records_of_tokens(make: Any) -> None:
    record = {"input_ids": make([5, 0, 7]), "messages": [{"role": "user", "content": "hi"}]}
    assert parse_record(record) == Conversation((), input_ids=[5, 0, 7])
    labelled = parse_record({**record, "labels": make([-100, 0, 7]), "_text_tokens": 3})
    assert labelled == Conversation((), 3, input_ids=[5, 0, 7], labels=[-100, 0, 7])


def test_opened_images_know_their_size() -> None:
    image = Image.new("RGB", (30, 20))
    (medium,) = parse_record(user("<image>", image=image)).media
    assert (medium.ref, media_info(medium, ANYWHERE)) == (image, MediaInfo(20, 30))


def called(said: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": None, **said}]}


BAD: list[tuple[Any, str, str]] = [
    ([1], "bad_record", "a list"),
    (None, "bad_record", "null"),
    ({}, "no_messages", "conversations"),
    ({"messages": []}, "no_messages", "empty"),
    ({"messages": "hi"}, "no_messages", "text"),
    ({"conversations": {"from": "human"}}, "no_messages", "an object"),
    ({"messages": ["hi"]}, "bad_turn", "turn 0 is text"),
    ({"messages": [None]}, "bad_turn", "turn 0 is null"),
    (user(5), "bad_turn", "a number"),
    (user(None), "bad_turn", "no content"),
    (user({"type": "text", "text": "x"}), "bad_turn", "an object"),
    (user([{"type": "text", "text": 5}]), "bad_turn", "a number"),
    (user([{"type": "sound", "audio": "a.wav"}]), "bad_turn", "'sound'"),
    (user("<audio>", audios=[]), "media_mismatch", "1 placeholder(s) for audios but 0"),
    (user("<audio>", audios=["a.wav", "b.wav"]), "media_mismatch", "but 2 audio(s)"),
    (user("<audio>", audio={"sampling_rate": 0, "path": "a.wav"}), "bad_media", "sampling_rate"),
    (user([{"type": "input_audio", "input_audio": {"data": "?"}}]), "bad_media", "base64"),
    (user([{"type": ["image"]}]), "bad_turn", "['image']"),
    (user([7]), "bad_turn", "a content part a number"),
    ({"messages": [{"role": "user"}]}, "bad_turn", "no content"),
    ({"messages": [{"content": "hi"}]}, "unknown_role", "no role: known are system"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "unknown_role", "'wizard'"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "unknown_role", "['user']"),
    (user("hi", system=5), "bad_turn", "a number"),
    (user("hi", system="a", system_prompt="b"), "unused_column", "'system_prompt' (a second"),
    (user("<image>", images=[]), "media_mismatch", "1 placeholder(s) for images but 0"),
    (user("See <image 1>.", images=["a"]), "media_mismatch", "a text has '<image 1>'"),
    (user("<image>", images=["a", "b"]), "media_mismatch", "1 placeholder(s) for images but 2"),
    (user("<video>", images=["a"]), "media_mismatch", "1 placeholder(s) for videos but 0"),
    (user([{"type": "image"}]), "media_mismatch", "1 placeholder(s) for images but 0"),
    (user("<image>", image="a", images=["a"]), "bad_media", "both"),
    (user("<image>", images=[5]), "bad_media", "a number"),
    (user("<image>", images=[None]), "bad_media", "null"),
    (user("<image>", images=[{"caption": "x"}]), "bad_media", "names nothing"),
    (user("<image>", images=[{"bytes": "%%"}]), "bad_media", "base64"),
    (user("<image>", images=[{"path": "a", "height": 0, "width": 5}]), "bad_media", "height is 0"),
    (user([{"type": "image", "image": ["a"]}]), "bad_media", "a list"),
    (user("hi", _text_tokens=-1), "bad_text_tokens", "-1"),
    (user("hi", _text_tokens=1.5), "bad_text_tokens", "1.5"),
    (user("hi", _text_tokens=True), "bad_text_tokens", "True"),
    (user("hi", _text_tokens=2**31), "bad_text_tokens", "2147483648"),
    (user("hi", mm_inputs_meta=[1]), "bad_meta", "a list"),
    (user("hi", mm_inputs_meta={"images_meta": 5}), "bad_meta", "a number"),
    (user("hi", mm_inputs_meta={"images_meta": [[1, 2]]}), "bad_meta", "1 entries"),
    (
        user("<image>", image="a", mm_inputs_meta={"images_meta": [[0, 9]]}),
        "bad_meta",
        "height is 0",
    ),
    (
        user("<image>", image="a", mm_inputs_meta={"images_meta": [[1, 2, 3, 4]]}),
        "bad_meta",
        "[height, width, n_tokens]",
    ),
    (user("hi", mm_inputs_meta={"videos_meta": [[1, 2]]}), "bad_meta", "1 entries"),
    (meta_of([1, 2, 3]), "bad_meta", "[num_frames, height, width, fps, duration, n_tokens]"),
    (meta_of([1, 2, 3, -1, 1]), "bad_meta", "fps is -1"),
    (meta_of([-1, 2, 3, 1, 1]), "bad_meta", "num_frames is -1"),
    (meta_of([1, 0, 3, 1, 1]), "bad_meta", "height is 0"),
    (meta_of([1, 2, 3, 1, "long"]), "bad_meta", "duration is 'long'"),
    (user("<video>", videos=[[]]), "bad_media", "an empty list of frames"),
    (user("<video>", videos=[["a", None]]), "bad_media", "null"),
    (user("<video>", videos=[["a", {}]]), "bad_media", "names nothing"),
    (user("<video>", videos=[{"path": "v", "fps": 0}]), "bad_media", "fps is 0"),
    (user("<video>", videos=[{"path": "v", "fps": "2"}]), "bad_media", "fps is '2'"),
    (user("<video>", videos=[{"path": "v", "num_frames": 0}]), "bad_media", "num_frames is 0"),
    (user("<video>", videos=[{"frames": ["a"], "nframes": 2}]), "bad_media", "lists 1"),
    (user("<video>", videos=[{"path": "v", "frame_indices": []}]), "bad_media", "frame_indices"),
    (user("<video>", videos=[{"path": "v", "frame_indices": [-1]}]), "bad_media", "-1"),
    (user("<video>", videos=[{"path": "v", "frame_indices": [None]}]), "bad_media", "null"),
    (turn_of(train="yes"), "bad_turn", "'train' of turn 0 is 'yes'"),
    (turn_of(loss=2), "bad_turn", "'loss' of turn 0 is 2"),
    (turn_of(weight=0.5), "bad_turn", "'weight' of turn 0 is 0.5"),
    (turn_of(weight=1, train=False), "bad_turn", "contradict"),
    (turn_of(role="function_call"), "bad_turn", "not JSON"),
    (turn_of(role="function_call", content="[]"), "bad_turn", "calls no function"),
    (turn_of(role="function_call", content='{"a": 1}'), "bad_turn", "calls no function"),
    ({"prompt": 5, "response": "r"}, "bad_turn", "'prompt' is a number"),
    ({"question": "q", "answer": True}, "bad_turn", "'answer' is a boolean"),
    ({"question": "q", "answers": []}, "bad_turn", "'answers' is empty"),
    ({"question": "q", "answer": ""}, "bad_turn", "no answer"),
    ({"question": "q", "answers": {"text": []}}, "bad_turn", "the question has no answer"),
    ({"prompt": [{"role": "user", "content": "q"}], "completion": ["r"]}, "bad_turn", "a list"),
    ({"prompt": "q", "response": ["r"]}, "bad_turn", "'response' is a list"),
    ({"prompt": "q"}, "no_messages", "none of"),
    ({"caption": "no image"}, "no_messages", "none of"),
    ({"text": "no image", "image": None}, "no_messages", "'text' and nothing in 'image'"),
    ({"text": ""}, "no_messages", "the document is empty"),
    ({"text": ["a"]}, "bad_turn", "'text' is a list, not text"),
    ({"prompt": "q<image>", "response": "r", "images": None}, "media_mismatch", "but 0"),
    (
        {"prompt": "<image>", "response": "r", "images": ["a", "b"]},
        "media_mismatch",
        "1 placeholder(s) for images but 2",
    ),
    ({"prompt": "q", "response": "r", "history": [["a"]]}, "bad_turn", "'history'"),
    ({"input_ids": []}, "bad_input_ids", "empty"),
    ({"input_ids": "1 2"}, "bad_input_ids", "text"),
    ({"input_ids": 5}, "bad_input_ids", "a number"),
    ({"input_ids": [1.5]}, "bad_input_ids", "[1.5]"),
    ({"input_ids": ["1"]}, "bad_input_ids", "['1']"),
    ({"input_ids": [[1], [2]]}, "bad_input_ids", "[[1], [2]]"),
    ({"input_ids": [[1], [2, 3]]}, "bad_input_ids", "[[1], [2, 3]]"),
    ({"input_ids": [1, None]}, "bad_input_ids", "[1, None]"),
    ({"input_ids": [1, True]}, "bad_input_ids", "a boolean"),
    ({"input_ids": [1, -1]}, "bad_input_ids", "holds -1 at 1"),
    ({"input_ids": [2**40]}, "bad_input_ids", "1099511627776"),
    ({"input_ids": [2**80]}, "bad_input_ids", "which is not a token"),
    ({"input_ids": [1], "labels": []}, "bad_labels", "empty"),
    ({"input_ids": [1], "labels": [1, 2]}, "bad_labels", "2 labels for 1 input_ids"),
    ({"input_ids": [1], "labels": [-1]}, "bad_labels", "holds -1 at 0"),
    ({"input_ids": [1], "_text_tokens": -1}, "bad_text_tokens", "-1"),
    (user("hi", tools="{"), "bad_record", "not JSON"),
    (user("hi", tools=5), "bad_record", "a number"),
    ({"question": "q", "answer": 1.2345678987654321e25}, "bad_json", "over 64 bits"),
    ({"question": "q", "answers": [-1e19, -1e19]}, "bad_json", "over 64 bits"),
    (user("hi", tools=[{"name": "f", "maximum": 2.0**64}]), "bad_json", "over 64 bits"),
    (called({"tool_calls": [{"name": "f", "arguments": {"x": [1e20]}}]}), "bad_json", "64 bits"),
    (called({"function_call": f'{{"name": "f", "x": 1{"0" * 20}}}'}), "bad_json", "64 bits"),
]


@pytest.mark.parametrize(("record", "reason", "words"), BAD)
def test_bad_records_have_a_reason(record: Any, reason: str, words: str) -> None:
    with pytest.raises(BadRecord) as caught:
        parse_record(record)
    assert caught.value.reason == reason
    assert words in caught.value.detail


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "conversations", "role", "content", "from", "value", "type", "text"]
                + ["image", "images", "image_url", "url", "bytes", "system", "mm_inputs_meta"]
                + ["images_meta", "height", "width", "n_tokens", "_text_tokens", "tools", "videos"]
                + ["videos_meta", "frames", "fps", "num_frames", "frame_indices", "train", "weight"]
                + ["prompt", "response", "history", "input_ids", "labels", "tool_calls"]
            ),
            inner
            | st.sampled_from(
                ["user", "human", "gpt", "<image>", "text", "image", "tool", "system"]
            ),
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(_json)
def test_any_json_parses_or_is_a_bad_record(record: Any) -> None:
    try:
        parsed = parse_record(record)
    except BadRecord as error:
        assert error.reason
        assert error.detail
    else:
        assert parsed.turns or parsed.input_ids
        assert all(part != "" for turn in parsed.turns for part in turn.parts)


@given(st.lists(st.text("ab<>ige \n", max_size=12) | st.just("<image>"), max_size=6))
def test_text_around_placeholders_is_kept(pieces: list[str]) -> None:
    text = "".join(pieces).replace("<<image>>", "")  # which is refused
    count = text.count("<image>")
    parsed = parse_record(user(text, images=[f"{number}.png" for number in range(count)]))
    parts = parsed.turns[0].parts
    assert "".join(part if isinstance(part, str) else "<image>" for part in parts) == text
    assert [medium.ref for medium in parsed.media] == [f"{n}.png" for n in range(count)]
