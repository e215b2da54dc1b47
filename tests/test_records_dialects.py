"""Raw records → conversations: dialects agree, text is kept, and what is wrong has a name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media, Turn, to_messages
from packidx.records.dialects import parse

QUESTION = "\n What is <b>this</b>?\t"
EXPECTED = (
    Turn("system", ("Be brief.",)),
    Turn("user", (Media("image", "a.png"), QUESTION, Media("image", "b.png"))),
    Turn("assistant", (" A cat.\n",)),
)


def user(content: Any, **record: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **record}


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
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
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
                {"role": "assistant", "content": [" A cat.\n", ""]},
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
    assert parse(record) == Conversation(EXPECTED)


def test_messages_round_trip() -> None:
    messages = to_messages(Conversation(EXPECTED))
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[1]["content"] == [
        {"type": "image"},
        {"type": "text", "text": QUESTION},
        {"type": "image"},
    ]
    assert parse({"messages": messages, "images": ["a.png", "b.png"]}).turns == EXPECTED


def test_tool_calls_are_kept() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"from": "observation", "value": "42", "name": "f"},
    ]
    parsed = parse({"messages": turns, "tools": '[{"name": "f"}]'})
    assert parsed.tools == [{"name": "f"}]
    assert to_messages(parsed)[1:] == [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "42", "name": "f"},
    ]


def test_nemo_meta_states_sizes_and_tokens() -> None:
    meta = {"images_meta": [[20, 30], None, {"height": 4, "width": 5, "n_tokens": 7}]}
    record = user("<image><image><image>", images=["a", "b", "c"], mm_inputs_meta=meta)
    parsed = parse({**record, "_text_tokens": 12})
    assert parsed.text_tokens == 12
    assert parsed.media == (
        Media("image", "a", 20, 30),
        Media("image", "b"),
        Media("image", "c", 4, 5, 7),
    )


def test_opened_images_know_their_size() -> None:
    image = Image.new("RGB", (30, 20))
    (medium,) = parse(user("<image>", image=image)).media
    assert (medium.ref, medium.height, medium.width) == (image, 20, 30)


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
    (user([{"type": "audio", "audio": "a.wav"}]), "bad_turn", "'audio'"),
    (user([{"type": ["image"]}]), "bad_turn", "['image']"),
    (user([7]), "bad_turn", "7"),
    ({"messages": [{"role": "user"}]}, "bad_turn", "no content"),
    ({"messages": [{"content": "hi"}]}, "unknown_role", "None"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "unknown_role", "'wizard'"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "unknown_role", "['user']"),
    (user("hi", system=5), "bad_turn", "a number"),
    (user("<image>"), "media_mismatch", "1 placeholder(s) for images but 0"),
    (user("<image>", images=["a", "b"]), "media_mismatch", "1 placeholder(s) for images but 2"),
    (user("<video>", images=["a"]), "media_mismatch", "images"),
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
        user("<image>", image="a", mm_inputs_meta={"images_meta": [[1, 2, 3]]}),
        "bad_meta",
        "[height, width]",
    ),
    (user("hi", tools="{"), "bad_record", "not JSON"),
    (user("hi", tools=5), "bad_record", "a number"),
]


@pytest.mark.parametrize(("record", "reason", "words"), BAD)
def test_bad_records_have_a_reason(record: Any, reason: str, words: str) -> None:
    with pytest.raises(BadRecord) as caught:
        parse(record)
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
        parsed = parse(record)
    except BadRecord as error:
        assert error.reason
        assert error.detail
    else:
        assert parsed.turns
        assert all(part != "" for turn in parsed.turns for part in turn.parts)


@given(st.lists(st.text("ab<>image \n", max_size=12) | st.just("<image>"), max_size=6))
def test_text_around_placeholders_is_kept(pieces: list[str]) -> None:
    text = "".join(pieces)
    count = text.count("<image>")
    parsed = parse(user(text, images=[f"{number}.png" for number in range(count)]))
    parts = parsed.turns[0].parts
    assert "".join(part if isinstance(part, str) else "<image>" for part in parts) == text
    assert [medium.ref for medium in parsed.media] == [f"{n}.png" for n in range(count)]
