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
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401
import trl.chat_template_utils as trl_templates
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.counter import Expanded, locate_runs, mask_trained_tokens
from packidx.processor.labels import LabelPolicy
from packidx.processor.text.encoder import TextEncoder
from packidx.records.read import parse_record

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
FIELDS = {"type": "object", "properties": {"what": {"type": "string"}}}
TOOL = {"name": "look_up", "description": "Looks something up.", "parameters": FIELDS}
BESIDE = {"qwen3": 0.5, "qwen3_instruct_2507": 0.0, "qwen3_vl": 0.0}
"""Share of the reasoning that stands beside the content, where the template writes it."""


def words(rng: random.Random, least: int = 1) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(least, 12))).strip()


def call(rng: random.Random) -> dict[str, Any]:
    given: Any = {"what": words(rng), "limit": rng.choice([1, 2.5, None, [True, "x"]])}
    if rng.random() < 0.3:
        given = json.dumps(given, ensure_ascii=False)
    return {"type": "function", "function": {"name": "look_up", "arguments": given}}


def said(rng: random.Random, think: float, beside: float) -> dict[str, Any]:
    """An assistant's message, its reasoning in the content or beside it, or none."""
    message: dict[str, Any] = {"role": "assistant", "content": words(rng) or "ok"}
    if rng.random() < think:
        thought = words(rng) or "hm"
        if rng.random() < beside:
            message["reasoning_content"] = thought
        else:
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
    return message


def dialogue(rng: random.Random, questions: int, think: float, beside: float) -> dict[str, Any]:
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
        record["tools"] = [{"type": "function", "function": TOOL}]
    return record


@pytest.fixture(scope="module")
def tokenizer(processors: Path) -> PreTrainedTokenizerBase:
    loaded = AutoTokenizer.from_pretrained(processors / "qwen3-vl")
    loaded.pad_token = "<|endoftext|>"
    return loaded


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("blocks", [True, False])
def test_labels(tokenizer: PreTrainedTokenizerBase, name: str, blocks: bool) -> None:
    """By the blocks of TRL's templates equal as they are; by a model's own but for the newline."""
    plain = getattr(trl_templates, f"{name}_chat_template")
    template = ChatTemplate(
        getattr(trl_templates, f"{name}_training_chat_template") if blocks else plain,
        control_tokens=tokenizer.all_special_tokens,
        empty_as_list=False,
        policy=LabelPolicy(),
    )
    # Qwen3's own template writes what TRL's does where every message thinks, after one question.
    questions, think = ([1], 1.0) if name == "qwen3" and not blocks else ([1, 2, 3], 0.5)
    rng, text = random.Random(name), TextEncoder(tokenizer.backend_tokenizer)
    tokenizer.chat_template = plain
    training = trl_templates.get_training_chat_template(tokenizer)
    assert training is not None
    end, newline = tokenizer.convert_tokens_to_ids(["<|im_end|>", "Ċ"])
    for _ in range(NUM_DIALOGUES):
        record = dialogue(rng, rng.choice(questions), think, BESIDE[name])
        built = tokenizer.apply_chat_template(
            record["messages"],
            tools=record.get("tools"),
            chat_template=training,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, mask = built["input_ids"], [each == 1 for each in built["assistant_masks"]]
        after = [False] + [a == end and b == newline for a, b in zip(ids, ids[1:], strict=False)]
        wanted = [label and (blocks or not drop) for label, drop in zip(mask, after, strict=True)]
        assert any(wanted) and (blocks or wanted != mask)
        rendered = template.render(parse_record(record))
        expanded = [Expanded(rendered.text, rendered.label_spans, runs=())]
        batch = text.encode([rendered.text], [False])
        trained = mask_trained_tokens(batch, text, expanded, locate_runs(batch, expanded, []))
        assert (batch.ids.tolist(), trained.tolist()) == (ids, wanted)
