"""Labels are TRL's: token masks compared on dialogues with tools and thinking.

TRL masks by ``{% generation %}`` blocks, which its training templates have and models' own do not.

- With a training template our default policy gives TRL's mask.
- With a model's own template the default differs by one thing: TRL's blocks hold the newline after
  ``<|im_end|>``, wherever both templates write the same text (Qwen3's own leaves out what was
  thought before the last question).

One more difference is by intent and does not occur here: a token that begins before a block (a
newline of the header merged with one of the content) is trained on by TRL, and by us only where it
is a word with the space before it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401
import trl.chat_template_utils as trl_templates
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.labels import LabelPolicy
from packidx.processor.text.encoder import TextEncoder
from packidx.processor.text.sequence import Expanded, locate_runs, trained_tokens
from packidx.records.dialects.parse import parse

NUM_DIALOGUES = 250
WORDS = [
    "weather",
    "in Köln",
    "is",
    "12 °C",
    "漢字",
    "🙂",
    "so",
    "\n",
    "it's",
    "```",
    "{x}",
    "<b>",
    "a\n\nb",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
        },
    }
]


BESIDE = {"qwen3": 0.5, "qwen3_instruct_2507": 0.0, "qwen3_vl": 0.0}
"""Share of the reasoning that stands beside the content, where the template writes it."""


def words(rng: random.Random, least: int = 1) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(least, 12))).strip()


def call(rng: random.Random) -> dict[str, Any]:
    given: Any = {"what": words(rng), "limit": rng.choice([1, 2.5, None, [True, "x"]])}
    if rng.random() < 0.3:
        given = json.dumps(given, ensure_ascii=False)
    return {"type": "function", "function": {"name": "look_up", "arguments": given}}


def said(rng: random.Random, think: float, beside: float = 0.5) -> dict[str, Any]:
    """An assistant's message, its reasoning in the content or beside it, or none."""
    message: dict[str, Any] = {"role": "assistant", "content": words(rng) or "ok"}
    if rng.random() < think:
        thought = words(rng) or "hm"
        if rng.random() < beside:
            message["reasoning_content"] = thought
        else:
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
    return message


def dialogue(
    rng: random.Random, *, questions: int, think: float, beside: float = 0.5
) -> dict[str, Any]:
    """A record: questions, each with rounds of tool calls and an answer."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": words(rng) or "Be kind."})
    for _ in range(questions):
        messages.append({"role": "user", "content": words(rng) or "?"})
        for _ in range(rng.choice([0, 0, 1, 2])):
            message = said(rng, think, beside)
            if "reasoning_content" in message and rng.random() < 0.4:
                message["content"] = ""
            message["tool_calls"] = [call(rng) for _ in range(rng.choice([1, 1, 2]))]
            messages.append(message)
            messages += [{"role": "tool", "content": words(rng)} for _ in message["tool_calls"]]
        messages.append(said(rng, think, beside))
    record: dict[str, Any] = {"messages": messages}
    if rng.random() < 0.7:
        record["tools"] = TOOLS
    return record


@pytest.fixture(scope="module")
def tokenizer(processors: Path) -> Iterator[PreTrainedTokenizerBase]:
    loaded = AutoTokenizer.from_pretrained(processors / "qwen3-vl")
    loaded.pad_token = "<|endoftext|>"
    yield loaded


def their_labels(
    tokenizer: PreTrainedTokenizerBase, template: str, record: dict[str, Any]
) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them TRL's trainer keeps as labels with ``assistant_only_loss``."""
    tokenizer.chat_template = template
    training = trl_templates.get_training_chat_template(tokenizer)
    assert training is not None
    built = tokenizer.apply_chat_template(
        record["messages"],
        tools=record.get("tools"),
        chat_template=training,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return built["input_ids"], [mask == 1 for mask in built["assistant_masks"]]


@lru_cache(maxsize=1)
def _encoder(tokenizer: PreTrainedTokenizerBase) -> TextEncoder:
    return TextEncoder(tokenizer.backend_tokenizer)


def our_labels(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, record: dict[str, Any]
) -> tuple[list[int], list[bool]]:
    rendered = template.render(parse(record))
    text = _encoder(tokenizer)
    expanded = [Expanded(rendered.text, rendered.label_spans, runs=())]
    batch = text.encode([rendered.text], [False])
    mask = trained_tokens(batch, text, expanded, locate_runs(batch, expanded, []))
    return batch.ids.tolist(), mask.tolist()


def ours(tokenizer: PreTrainedTokenizerBase, source: str, policy: LabelPolicy) -> ChatTemplate:
    control = tokenizer.all_special_tokens
    return ChatTemplate(source, control_tokens=control, empty_as_list=False, policy=policy)


def without_newlines(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], mask: list[bool]
) -> list[bool]:
    """`mask` without the newline that follows each ``<|im_end|>``."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    newline = tokenizer.convert_tokens_to_ids("Ċ")
    after = [False] + [a == end and b == newline for a, b in zip(ids, ids[1:], strict=False)]
    return [label and not drop for label, drop in zip(mask, after, strict=True)]


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen3_vl"])
def test_training_templates(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """The blocks of TRL's templates: equal as they are."""
    plain = getattr(trl_templates, f"{name}_chat_template")
    training = getattr(trl_templates, f"{name}_training_chat_template")
    template = ours(tokenizer, training, LabelPolicy())
    rng = random.Random(name)
    for _ in range(NUM_DIALOGUES):
        record = dialogue(rng, questions=rng.choice([1, 2, 3]), think=0.5, beside=BESIDE[name])
        ids, mask = our_labels(tokenizer, template, record)
        assert (ids, mask) == their_labels(tokenizer, plain, record)
        assert any(mask)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen3_vl"])
def test_own_templates(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Models' own templates, without blocks: equal but for the newline."""
    plain = getattr(trl_templates, f"{name}_chat_template")
    default = ours(tokenizer, plain, LabelPolicy())
    # Qwen3's own template writes what TRL's does where every message thinks, after one question.
    questions, think = ([1], 1.0) if name == "qwen3" else ([1, 2, 3], 0.5)
    rng = random.Random(name)
    for _ in range(NUM_DIALOGUES):
        record = dialogue(rng, questions=rng.choice(questions), think=think, beside=BESIDE[name])
        ids, mask = their_labels(tokenizer, plain, record)
        assert our_labels(tokenizer, default, record) == (
            ids,
            without_newlines(tokenizer, ids, mask),
        )
        assert without_newlines(tokenizer, ids, mask) != mask
