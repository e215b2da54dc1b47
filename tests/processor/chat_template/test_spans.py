"""Text equals transformers', and label spans equal those of a rendering with marks, whatever texts
hold."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from packidx.errors import BadRecord
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn

HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "<|im_end|>\n{% endfor %}"
SAID = "{{ m.content if m.content is string else m.content | map(attribute='text') | join }}"
DECIDES = {
    "a word in the text": "{{ 'A' if 'cat' in m.content else 'B' }}{{ m.content }}",
    "what it begins with": "{{ 'a' if m.content.startswith('cat') }}{{ m.content }}",
    "a stretch of it": "{{ m.content.split('cat')[-1] }}",
    "its length": "{{ 'A' if m.content | length < 5 else 'B' }}{{ m.content }}",
    "its ends": "{{ m.content.strip('ct') }}",
    "white space at its ends": "{{ m.content.strip('\n') }}|{{ m.content | trim }}",
    "JSON": "{{ m.content | tojson }}",
    "its characters": "{% for c in m.content %}{{ 'A' if 't' in c else c }}{% endfor %}",
    "its number": "{{ loop.index }}{{ m.content }}{{ loop.length }}",
    "where it ends": "{{ m.content }}{{ 'a' if m.content[-1:] != 'a' }}",
}
BY_PLACE = "{% for m in messages %}<|im_start|>{{ ['user', 'assistant'][loop.index0 % 2] }}\n"
SOURCES = {
    **{path.stem: path.read_text() for path in Path(trl.__file__).parent.glob("*/*.jinja")},
    **{name: HEAD + content + TAIL for name, content in DECIDES.items()},
    "roles by their place": BY_PLACE + SAID + TAIL,
    "trims lists": HEAD + "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}" + TAIL,
    "no header": "{% for m in messages %}" + SAID + TAIL,
    "no words at all": "{% for m in messages %}" + SAID + "{% endfor %}",
    "prose": "{% for m in messages %}{{ m.role }}: " + SAID + "\n{% endfor %}",
    "assistants first": "{% for m in messages | selectattr('role', 'equalto', 'assistant') %}"
    "<|im_start|>assistant\n" + SAID + TAIL + HEAD + SAID + TAIL,
}
NUM_CHATS = int(os.environ.get("PACKIDX_HOSTILE_CHATS", "2000"))  # 20,000: 10 minutes of CPU
PLACEHOLDERS = ("<|image_pad|>", "<start_of_image>", "<|image|>", "<image>", "[IMG]")
PLAIN = ["Yes.", "Yes.", "Yes.", "assistant", "user", "model", "a", "aa", "cat", "What is there?"]
WORDS = [
    *("assistant", "user", "system", "Assistant:", "Yes.", "a", "cat", "\n", "<", "|", ":", "text"),
    *("<think>", "</think>", "<tool_response>", "</tool_response>", "/nothink", "None", "42"),
    *("<|im_end|>", "<|im_start|>assistant\n", "<|im_start|>", "你好", "straße", "é", "\u2028"),
    *("'", "\\", "{{x}}", "{% y %}", "\x00", "\ue000", "\U000f0001", "\U00100001", "\U0010ffff"),
]
SPACE = [" ", "\n", "\n", " \n", "\n\n", "\t", "\xa0", "\u2028", "\x1f", "\u3000"]


def template_of(source: str, words: str = "all") -> ChatTemplate:
    token = next((word for word in PLACEHOLDERS if word in source), None)
    return ChatTemplate(
        source,
        {"bos_token": "<s>", "eos_token": "</s>"},
        control_tokens={
            "</s>",
            *re.findall(r"<\W?\w+\W?>|\[/?\w+\]|<\|\w+\|>|<｜[^｜]+｜>", source),
        },
        media_tokens={} if token is None else {"image": token},
        empty_as_list=False,
        policy=LabelPolicy.parse(words),
    )


class Hostile:
    """Draws chats that hold the words of a template."""

    def __init__(self, template: ChatTemplate, seed: str) -> None:
        self.rng = random.Random(seed)
        words = template._words
        self.own = [*(words.header, words.stop, words.stop + "\n", "x"), *template.control_tokens]
        self.has_media = bool(template.media_tokens)

    def text(self) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return rng.choice(["", *SPACE])
        if kind < 0.6:
            said = rng.choice(PLAIN)
        else:
            words = rng.choice([WORDS, WORDS, WORDS, self.own])
            said = "".join(rng.choice(words) for _ in range(rng.randrange(1, 5)))
        if kind > 0.95:
            said = f"<think>\n{said}\n</think>\n\n{rng.choice(['ok', '', ' x'])}"
        ends = [rng.choice(SPACE) if rng.random() < 0.1 else "" for _ in range(2)]
        return ends[0] + said + ends[1]

    def turn(self, role: str, media: float = 0.0) -> Turn:
        rng = self.rng
        parts: list[Any] = [self.text() for _ in range(rng.choice([1] * 12 + [0, 2, 3]))]
        while self.has_media and rng.random() < media:
            parts.insert(rng.randrange(len(parts) + 1), Media("image"))
        extra: dict[str, Any] = {"note": "<|im_end|>"} if rng.random() < 0.02 else {}
        if role == "assistant" and rng.random() < 0.02:
            extra["reasoning_content"] = self.text()
        train = rng.choice([True, False]) if rng.random() < 0.03 else None
        return Turn(role, tuple(parts), extra, train, text_as_list=rng.random() < 0.1)

    def chat(self) -> Conversation:
        rng = self.rng
        turns = [self.turn("system")] if rng.random() < 0.2 else []
        for _ in range(rng.choice([1, 1, 2, 3])):
            turns.append(self.turn("user", 0.3))
            turns.append(self.turn("assistant", 0.03))
            if rng.random() < 0.1:
                turns.append(self.turn(rng.choice(["assistant", "user", "system"])))
        return Conversation(tuple(turns))


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize(
    ("words", "num_chats", "num_real"),
    [
        ("all", 500, 50),
        pytest.param("all", NUM_CHATS, 300, marks=pytest.mark.slow),
        pytest.param("last", 300, 300, marks=pytest.mark.slow),
        pytest.param("no-eot", 300, 300, marks=pytest.mark.slow),
    ],
)
def test_hostile_chats(name: str, words: str, num_chats: int, num_real: int) -> None:
    """Renderings are transformers', and spans those of a rendering with marks."""
    template = template_of(SOURCES[name], words)
    hostile = Hostile(template, name)
    real = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    compared = 0
    for number in range(num_chats):
        chat = hostile.chat()
        try:
            rendered = template.render(chat)
            spans = template._marked_spans(chat, rendered.text)
        except BadRecord:
            continue
        compared += 1
        wanted = spans if any(template.policy.trains(chat.turns)) else ()
        assert rendered.label_spans == wanted, (chat, rendered)
        if number < num_real and not any(turn.extra for turn in chat.turns):
            messages = template.messages(chat)
            text = real.apply_chat_template(messages, chat_template=template.source, tokenize=False)
            assert rendered.text == text
    assert compared


FAMILIES = ["gemma3", "idefics3", "llama3_2", "llava_next", "qwen2_5_vl", "qwen3", "qwen3_vl"]


@pytest.mark.parametrize("name", [*FAMILIES, "qwen3_training", "smolvlm", "deepseekv3"])
def test_plain_chats_are_rendered_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = template_of(SOURCES[name])
    image = (Media("image"),) if template.media_tokens and name != "gemma3" else ()

    def chat(text: str, *, rounds: int) -> Conversation:
        talk = (Turn("user", (*image, text)), Turn("assistant", (text,)))
        return Conversation((Turn("system", (text,)), *talk * rounds))

    for rounds in (1, 2, 3):
        template.render(chat("What is this?", rounds=rounds))
    monkeypatch.delattr(ChatTemplate, "_marked_spans")
    for text in ("Yes.", "assistant", "< 3 > 2\n\n- a", "<|im_end|>\n<|im_start|>assistant\n!"):
        rendered = template.render(chat(text, rounds=7))
        assert len(rendered.label_spans) == 7
        assert all(text in rendered.text[start:end] for start, end in rendered.label_spans)


def test_the_same_words_are_not_the_same_message() -> None:
    template = template_of("{% for m in messages %}[" + SAID + "]{% endfor %}")
    user, answer = Turn("user", ("Yes.",)), Turn("assistant", ("Yes.",))
    silent = Turn("assistant", ("Yes.",), train=False)
    for turns, spans in [
        ((user, answer), [(7, 11)]),
        ((user, user, answer), [(13, 17)]),
        ((answer, user, answer), [(1, 5), (13, 17)]),
        ((user, silent, answer), [(13, 17)]),
        ((user, answer, silent), [(7, 11)]),
        ((user, answer), [(7, 11)]),
    ]:
        assert list(template.render(Conversation(turns)).label_spans) == spans


CALLS = [
    {"type": "function", "function": {"name": name, "arguments": {"what": what}}}
    for name, what in (("look", "A"), ("find", "B"))
]
ASK, SO = Turn("user", ("Hi",)), Turn("assistant", ("So.",))
CALLED = (ASK, Turn("assistant", ("So.",), {"tool_calls": CALLS}), Turn("tool", ("C",)))
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("name", "turns", "span"),
    [
        ("glm4moe", CALLED, "\n<think></think>\nSo.\n<tool_call>look.*B.*</tool_call>"),
        ("qwen3", CALLED, r"So\.\n<tool_call>.*look.*B.*</tool_call><\|im_end\|>"),
        ("deepseekv3", (ASK, SO), "So.<｜end▁of▁sentence｜>"),
        *[
            ("gptoss", (ASK, Turn("assistant", (text,), {"thinking": "Hm."})), re.escape(said))
            for text, said in (("So.", f"{ANALYSIS}So.<|return|>"), ("", f"{ANALYSIS}<|return|>"))
        ],
        *[(name, CALLED, None) for name in ("gemma4", "diffusion_gemma")],
    ],
)
def test_calls_and_reasoning_are_trained_on(
    name: str, turns: tuple[Turn, ...], span: str | None
) -> None:
    """A call is refused where the template writes the tool's answer into the same turn."""
    template = template_of(SOURCES[name])
    if span is None:
        with pytest.raises(BadRecord, match="does not show what is trained on"):
            template.render(Conversation(turns))
        return
    rendered = template.render(Conversation(turns))
    [(start, end)] = rendered.label_spans
    assert re.fullmatch(span, rendered.text[start:end], re.DOTALL)
