"""What is put together from marks is what Jinja renders, whatever texts hold."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import trl

from packidx.errors import BadRecord, LimitError
from packidx.processor.chat_template import chat_template
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, Turn

TEMPLATES = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
WORDS = [
    *("<think>", "</think>", "<tool_response>", "</tool_response>", "/nothink", "<|im_end|>"),
    *("image", "video", "<image>", "text", "user", "你好", "straße", '"', "'", "\\", "{", "}"),
    "{{x}}",
    *("a", "yes", "<", ">", "nk>", "<thi", "42", "|", "system", "role", "None", "é", "thinking"),
    *("tool", "\ue000", "\ue0001\ue001", "\u2028"),
]
SPACE = ["", "", "", " ", "\n", " \n", "\t", "\n\n"]
HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "<|im_end|>\n{% endfor %}"


def words(rng: random.Random) -> str:
    said = "".join(
        rng.choice(WORDS) + rng.choice(SPACE) for _ in range(rng.choice([1, 1, 2, 3, 5]))
    )
    thought = f"<think>\n{said}\n</think>\n\n" + rng.choice(["ok", "done. ", "", " x\n"])
    plain = rng.choice(["The answer is", "What is in the image?", "Yes.", "no"])
    text = rng.choice([plain, plain, said, said, thought])
    return rng.choice(SPACE) + text + rng.choice(SPACE)


def chat(rng: random.Random) -> Conversation:
    turns = [Turn("system", (words(rng),))] if rng.random() < 0.3 else []
    for number in range(rng.choice([1, 1, 2, 3])):
        parts: list[Any] = [words(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        if rng.random() < 0.2:
            parts.insert(rng.randrange(2), Media("image"))
        turns.append(Turn("user", tuple(parts), text_as_list=rng.random() < 0.2))
        extra: dict[str, Any] = {}
        if rng.random() < 0.2:
            extra["reasoning_content"] = words(rng)
        if rng.random() < 0.2:
            arguments = rng.choice([{"what": words(rng), "n": 1}, words(rng), {}])
            call = {"name": "look", "arguments": arguments}
            name = f"c{number}"
            extra["tool_calls"] = [{"id": name, "type": "function", "function": call}]
            turns.append(Turn("assistant", (), extra))
            turns.append(Turn("tool", (words(rng),), {"tool_call_id": name}))
            extra = {}
        turns.append(Turn("assistant", (words(rng),), extra))
    return Conversation(tuple(turns))


def outcome(call: Any, conversation: Conversation) -> str | None:
    try:
        rendered = call(conversation)
    except BadRecord:
        return None
    return rendered if isinstance(rendered, str) else rendered.text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_hostile_chats_are_rendered_as_jinja_does(path: Path) -> None:
    template = ChatTemplate(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})
    compared = 0
    for seed in range(40):
        conversation = chat(random.Random(f"{path.stem} {seed}"))
        text = outcome(template.render, conversation)
        if text is not None:
            assert text == outcome(template._render, conversation)
            compared += 1
    assert compared


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_labels_are_those_that_jinja_s_rendering_shows(path: Path) -> None:
    source = path.read_text()
    control = {"</s>", *re.findall(r"<\W?\w+\W?>|\[\w+\]", source)} - {"<s>"}
    template = ChatTemplate(
        source, {"bos_token": "<s>", "eos_token": "</s>"}, control_tokens=control
    )
    compared = 0
    for seed in range(20):
        conversation = chat(random.Random(f"{path.stem} {seed}"))
        try:
            slow = template._render_slowly(conversation)
            assert template.render(conversation).label_spans == slow.label_spans
        except BadRecord as error:
            assert error.reason in ("template", "not_rendered")
            continue
        compared += 1
    assert compared


def said(*texts: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation(tuple(Turn(roles[n % 2], (text,)) for n, text in enumerate(texts)))


DECIDES = {
    "a word in the text": "{{ 'A' if 'cat' in m.content else 'B' }}{{ m.content }}",
    "two words": "{{ 'A' if 'cat' in m.content and 'dog' not in m.content }}{{ m.content }}",
    "the text as a whole": "{{ 'A' if m.content == 'cat' else 'B' }}{{ m.content }}",
    "what it begins with": "{{ 'A' if m.content.startswith('cat') else 'B' }}{{ m.content }}",
    "a stretch of it": "{{ m.content.split('cat')[-1] }}",
    "its length": "{{ 'A' if m.content|length < 5 else 'B' }}{{ m.content }}",
    "its case": "{{ 'A' if m.content|lower == 'cat' else 'B' }}{{ m.content }}",
    "another text": "{{ 'A' if m.content == messages[0].content else 'B' }}{{ m.content }}",
    "a word by its name": "{% set w = 'cat' %}{{ m.content.replace(w, 'dog') }}",
    "its ends": "{{ m.content.strip('ct') }}",
    "white space at its ends": "{{ m.content.strip('\n') }}|{{ m.content|trim }}",
    "JSON": "{{ m.content|tojson }}",
    "a word in a character of it": "{% for c in m.content %}{{ 'A' if 'cat' in c else c }}"
    "{% endfor %}",
    "a letter in a character of it": "{% for c in m.content %}{{ 'A' if 't' in c else c }}"
    "{% endfor %}",
    "a word in a stretch of it": "{% for w in m.content.split(' ') %}{{ 'A' if 'cat' in w else w }}"
    "{% endfor %}",
    "a word in what a macro is given": "{% macro f(x) %}{% for c in x %}"
    "{{ 'A' if 'cat' in c else c }}{% endfor %}{% endmacro %}{{ f(m.content) }}"
    "{{ f(m.content.split(' ')) }}",
    "its first letter": "{{ 'A' if m.content[0] == 'c' else 'B' }}{{ m.content }}",
    "its first letters": "{{ 'A' if m.content[:3] == 'cat' else 'B' }}{{ m.content }}",
    "an odd length": "{{ 'A' if m.content|length % 2 else 'B' }}{{ m.content }}",
    "another one's length": "{{ 'A' if m.content|length < messages[0].content|length }}"
    "{{ m.content }}",
    "its place in the alphabet": "{{ 'A' if m.content < 'd' else 'B' }}{{ m.content }}",
    "a number in it": "{{ m.content|int }}{{ m.content }}",
    "it and a word": "{{ 'A' if 'xcat' in 'x' ~ m.content }}{{ m.content }}",
    "what it formats": "{{ m.content.format() }}",
    "whether it is nothing": "{{ 'A' if m.content == none else 'B' }}{{ m.content }}",
    "what two make": "{% if loop.first and 'catdog' in m.content + messages[1].content %}A"
    "{% endif %}{{ m.content }}",
}
TEXTS = ["cat", "Cat", " cat\n", "a cat", "dog", "dog cat", "cat cat", "\n", 'a "c"', "cattle"]
TEXTS += ["t", "12", "zz", "{{cat}}"]


@pytest.mark.parametrize("content", DECIDES.values(), ids=DECIDES)
def test_a_template_that_decides_by_texts_is_followed(content: str) -> None:
    for seed in range(9):  # what a shape is learned of is another text each time
        template = ChatTemplate(HEAD + content + TAIL)
        pairs = [(first, second) for first in TEXTS for second in TEXTS]
        random.Random(seed).shuffle(pairs)
        for first, second in pairs:
            conversation = said(first, second)
            made = outcome(template.render, conversation)
            assert made in (None, outcome(template._render, conversation))


FAMILIES = ["gemma3", "idefics3", "llama3_2", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm"]


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_chats_need_no_jinja(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = (path for path in TEMPLATES if path.stem == name)
    template = ChatTemplate(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})
    monkeypatch.delattr(ChatTemplate, "_render_slowly")
    image = (Media("image"),) if name not in ("llama3_2", "gemma3") else ()
    for text in ("What is the user doing in this image?", "< 3 > 2\n\n- a"):
        talk = (Turn("user", (*image, text)), Turn("assistant", (text,)))
        conversation = Conversation((Turn("system", (text,)), *talk, *talk))
        assert template.render(conversation).text.count(text) == 5


def test_a_record_unlike_others_of_its_shape_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(HEAD + "{{ m.content }}" + TAIL)
    template.render(said("a", "b"))
    (skeleton,) = template._skeletons.values()
    assert skeleton is not None
    skeleton.parts[0] += "!"
    monkeypatch.setattr(chat_template, "COMPARED", 1)
    with pytest.raises(LimitError, match="otherwise than others of its shape"):
        template.render(said("c", "d"))
