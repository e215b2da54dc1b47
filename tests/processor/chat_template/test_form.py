"""What a template is given: the record's own words, and what it cannot show in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from processors import tokenizer_alone, trl_template
from transformers import AutoTokenizer

from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import to_messages
from packidx.records.read import parse_record

STRINGS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ADDED = STRINGS.replace("m.content", "m.content + ''")
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}"
    "{% if 'image' in p %}{{ image_token }}{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
KNOWS = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'developer'] %}"
    "<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
CALL = [{"type": "function", "function": {"name": "look", "arguments": {"n": 1, "what": "x"}}}]


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}, {"role": "assistant", "content": "b"}]}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("source", "record", "text", "changes"),
    [
        (STRINGS, said("a"), "<user>a<assistant>b", []),
        (STRINGS, said(parts("a")), "<user>a<assistant>b", ["lists of texts given as strings"]),
        (STRINGS, said(parts("a", "", "c")), "<user>ac<assistant>b", ["lists of texts given as s"]),
        (ADDED, said(parts("a")), "<user>a<assistant>b", ["lists of texts given as strings"]),
        (STRINGS, said([]), "<user><assistant>b", ["lists of texts given as strings"]),
        (PARTS, said(parts("a", "")), "<user>a<assistant>b", ["texts given as lists of parts"]),
        (KNOWS, said("a", "developer"), "<developer>a<assistant>b", []),
        (KNOWS, said("a", "ipython"), "<assistant>b", ["the role ipython given as tool"]),
        (STRINGS, said("a", "function"), "<function>a<assistant>b", []),
    ],
)
def test_what_a_template_cannot_show_is_changed_and_told(
    source: str, record: dict[str, Any], text: str, changes: list[str]
) -> None:
    template = ChatTemplate(source, empty_as_list=False)
    for _ in range(2):  # the second time from what was learned
        assert template.render(parse_record(record)).text == text
    told = template.changes(parse_record(record))
    assert len(told) == len(changes)
    assert all(word.startswith(start) for word, start in zip(told, changes, strict=True))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": parts("a", "", "b")}],
        [{"role": "user", "content": parts("")}, {"role": "assistant", "content": []}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": parts("", "")}],
        [{"role": "developer", "content": "a"}],
        [{"role": "assistant", "content": None, "tool_calls": CALL}],
    ],
)
def test_a_records_messages_are_kept_as_they_are(messages: list[dict[str, Any]]) -> None:
    assert to_messages(parse_record({"messages": messages, "tools": []})) == messages
    assert parse_record({"messages": messages, "tools": []}).tools == []


def test_a_placeholder_where_nothing_is_a_medium_is_text(qwen: Path) -> None:
    record = said("What is the <video> tag of <image>?")
    talk = parse_record(record)
    assert talk.has_literal and talk.turns[0].parts == (record["messages"][0]["content"],)
    loaded = AutoTokenizer.from_pretrained(qwen)
    ids = loaded.apply_chat_template(record["messages"], tokenize=True, return_dict=False)
    assert ProcessorEncoder(qwen).count(record) == len(ids)


@pytest.mark.parametrize(
    "beside",
    [{"images": []}, {"image": None}, {"photo": "a.png"}, {"x": [{"y": "b.mp4"}]}, {"z": b"\xff"}],
)
def test_a_placeholder_beside_what_may_be_a_medium_is_no_text(beside: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"1 placeholder\(s\) for images but 0"):
        parse_record(said("<image>") | beside)
    with pytest.raises(Exception, match=r"1 placeholder\(s\) for images but 0"):
        parse_record(said("<image>"), has_media=True)


def test_a_template_may_ask_for_a_mediums_key_and_name_its_token() -> None:
    template = ChatTemplate(PARTS, {"image_token": "<IMG>"}, media_tokens={"image": "<IMG>"})
    image = {"type": "image", "image": "a.png"}
    rendered = template.render(parse_record(said([image, *parts("a")])))
    assert rendered.text == "<user><IMG>a<assistant>b" and rendered.media == (6,)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer alone, and a token for an image that it names."""
    folder = tokenizer_alone(tmp_path_factory.mktemp("tokenizer") / "alone", STRINGS)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"image_token": "<|image_pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("where", ["config", "files"])
@pytest.mark.parametrize("tools", [None, [], [{"name": "f"}]])
def test_the_template_for_tools_is_taken_where_the_tokenizer_takes_it(
    qwen: Path, tmp_path: Path, where: str, tools: Any
) -> None:
    folder = tmp_path / "named"
    shutil.copytree(qwen, folder)
    for_tools = "{{ tools | length }} tools {{ image_token }}" + STRINGS
    if where == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(for_tools)
    else:
        (folder / "chat_template.jinja").unlink()
        config = json.loads((folder / "tokenizer_config.json").read_text())
        named = {"default": STRINGS, "tool_use": for_tools}
        config["chat_template"] = [{"name": k, "template": v} for k, v in named.items()]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    real = AutoTokenizer.from_pretrained(folder)
    record = said("a") | {"tools": tools}
    ids = real.apply_chat_template(record["messages"], tools=tools, return_dict=False)
    for given in (folder, real):
        assert ProcessorEncoder(given).count(record) == len(ids)
    assert load_processor(folder).fingerprint() == ProcessorEncoder(real).fingerprint()
    assert load_processor(folder).fingerprint() != load_processor(qwen).fingerprint()


@pytest.mark.parametrize(
    ("name", "control", "expected"),
    [
        (
            "gptoss",
            "<|start|> <|message|> <|end|> <|channel|> <|call|> <|return|>",
            [
                " to=functions.look<|channel|>commentary json<|message|>"
                '{"n": 1, "what": "x"}<|call|>',
                "<|channel|>final<|message|>Here.<|return|>",
            ],
        ),
        (
            "gemma4_v5",
            '<|turn> <turn|> <|tool_call> <tool_call|> <|tool_response> <|"|>',
            ['<|tool_call>call:look{n:1,what:<|"|>x<|"|>}<tool_call|>', "Here.<turn|>"],
        ),
    ],
)
@pytest.mark.parametrize("name_again", [False, True])
def test_a_tools_response_is_not_trained_on(
    name: str, control: str, expected: list[str], name_again: bool
) -> None:
    template = ChatTemplate(
        trl_template(name), {"bos_token": ""}, control_tokens=control.split(), empty_as_list=False
    )
    calls = [{"id": "c1", **CALL[0]}]
    answer = {"tool_call_id": "c1"} | ({"name": "look"} if name_again else {})
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "42", **answer},
        {"role": "assistant", "content": "Here."},
    ]
    rendered = template.render(parse_record({"messages": messages}))
    assert [rendered.text[start:end] for start, end in rendered.label_spans] == expected


def test_the_first_word_behind_a_block_is_trained_on(qwen: Path, tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    shutil.copytree(qwen, folder)
    source = "{% for m in messages %}{% if m.role == 'assistant' %}ASSISTANT: {% generation %}"
    source += "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }} "
    (folder / "chat_template.jinja").write_text(source + "{% endif %}{% endfor %}")
    sample = ProcessorEncoder(folder)(said("Where?") | {"messages": said("Where?")["messages"]})
    trained = sample["input_ids"][sample["labels"] != -100].tolist()
    assert AutoTokenizer.from_pretrained(folder).decode(trained) == " b<|im_end|>"
