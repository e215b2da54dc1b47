"""Messages through the command line and the reader: calls, reasoning, tools and loss flags."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from processors import trl_template
from read_back import read_back

END = "<|im_end|>"
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
)
EITHER = (  # calls only where there is no content, tools only beside a system prompt
    "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}"
    "{% else %}{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }})"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
FIRST = (  # the first call alone
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}<|im_end|>\n"
    "{% endfor %}"
)
FIRST_SYSTEM = PLAIN.replace("%}<|", "%}{% if loop.first or m.role != 'system' %}<|", 1).replace(
    "\n{% endfor", "\n{% endif %}{% endfor"
)


OWN = {"plain": PLAIN, "first_system": FIRST_SYSTEM, "either": EITHER, "first": FIRST}


@pytest.fixture
def tokenizer(processors: Path, tmp_path: Path) -> Callable[[str], Path]:
    def saved(template: str) -> Path:
        folder = tmp_path / "tokenizer"
        shutil.copytree(processors / "qwen2.5-vl", folder)
        for path in folder.glob("*preprocessor_config.json"):
            path.unlink()
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("processor_class", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        source = OWN.get(template) or trl_template(template)
        (folder / "chat_template.jinja").write_text(source)
        return folder

    return saved


CALLS = [{"name": "look", "arguments": {"what": "a cat"}}, {"name": "ask", "arguments": {"n": 2}}]
TEXTS = [json.dumps(call) for call in CALLS]
OPENAI = [{"type": "function", "function": call} for call in CALLS]
USER, SAY = {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Let me look."}
SEEN, DONE = {"from": "observation", "value": "42"}, {"from": "gpt", "value": "So."}


def swift(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def openai(*messages: tuple[str, str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": content} | ({"tool_calls": list(calls)} if calls else {})
        for role, content, calls in messages
    ]


ASK, END_OF_IT = ("user", "Why?", ()), (("tool", "42", ()), ("assistant", "So.", ()))
TORN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "LLaMA-Factory": (
        [USER, SAY, {"from": "function_call", "value": TEXTS[0]}, SEEN, DONE],
        openai(ASK, ("assistant", "Let me look.", OPENAI[:1]), *END_OF_IT),
    ),
    "parallel turns": (
        [USER, *({"from": "function_call", "value": text} for text in TEXTS), SEEN, SEEN, DONE],
        openai(ASK, ("assistant", "", OPENAI), END_OF_IT[0], *END_OF_IT),
    ),
    "a list of calls": (
        [USER, SAY, {"from": "function_call", "value": json.dumps(CALLS)}, SEEN, DONE],
        openai(ASK, ("assistant", "Let me look.", OPENAI), *END_OF_IT),
    ),
    "ms-swift": (
        [
            *(swift("user", "Why?"), swift("assistant", "Let me look.")),
            *(swift("tool_call", TEXTS[0]), swift("tool_call", TEXTS[1])),
            *(swift("tool_response", "42"), swift("tool", "42"), swift("assistant", "So.")),
        ],
        openai(ASK, ("assistant", "Let me look.", OPENAI), END_OF_IT[0], *END_OF_IT),
    ),
    "a call at the end": (
        [USER, SAY, {"from": "function_call", "value": TEXTS[0]}],
        openai(ASK, ("assistant", "Let me look.", OPENAI[:1])),
    ),
}


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3"])
def test_a_call_is_of_the_message_before_it(
    template: str, tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tokenizer(template)
    real = transformers.AutoTokenizer.from_pretrained(folder)
    outcomes = read_back([{"messages": turns} for turns, _ in TORN.values()], folder, tmp_path)
    for name, outcome in zip(TORN, outcomes, strict=True):
        _, messages = TORN[name]
        ids = real.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        assert (outcome.reason, outcome.length) == (None, len(ids)), name
        answers = sum(message["role"] == "assistant" for message in messages)
        assert outcome.trained is not None and outcome.trained.count(END) == answers, name


def test_calls_that_contradict_the_answer_are_rejected(
    tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    call = {"from": "function_call", "value": TEXTS[0]}
    records = [
        {"messages": [USER, {**SAY, "train": False}, call]},
        {"messages": [USER, SAY, {**call, "loss": 0}]},
        {"messages": [USER, {**SAY, "thinking": "a"}, {**call, "thinking": "b"}]},
    ]
    outcomes = read_back(records, tokenizer("qwen3"), tmp_path)
    assert [outcome.reason for outcome in outcomes] == ["bad_turn"] * 3


def answered(**extra: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", **extra}]}


def mid_system(text: str) -> dict[str, Any]:
    turns = answered(**HI)["messages"]
    return {"messages": [*turns, {"role": "system", "content": text}, *turns]}


HI = {"content": "Hi."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
UNWRITTEN: list[tuple[str, dict[str, Any], str | None]] = [
    ("plain", answered(**HI, reasoning_content="Hm."), "reasoning_content"),
    ("plain", answered(**HI, thought="Hm."), "thought"),
    ("plain", answered(content="", tool_calls=OPENAI), "tool_calls"),
    ("plain", answered(content=None, tool_calls=OPENAI), "tool_calls"),
    ("plain", answered(content="", function_call=CALLS[0]), "function_call"),
    ("plain", {**answered(**HI), "tools": TOOLS}, "tools"),
    ("plain", {**answered(**HI), "tools": json.dumps(TOOLS)}, "tools"),
    ("plain", {"messages": [USER, {"from": "function_call", "value": TEXTS[0]}]}, "tool_calls"),
    ("plain", answered(**HI, reasoning_content="", tool_calls=[], function_call=None), None),
    ("either", answered(content="", tool_calls=OPENAI), None),
    ("either", answered(**HI, tool_calls=OPENAI), "tool_calls"),
    ("either", {**answered(**HI), "tools": TOOLS}, "tools"),
    ("plain", answered(**HI, tool_plan="I will look."), "tool_plan"),
    ("plain", answered(**HI, name="The Bot"), None),
    ("first", answered(content="", tool_calls=OPENAI[:1]), None),
    ("first", answered(content="", tool_calls=OPENAI), "tool_calls"),
    ("plain", answered(content=None, function_call=CALLS[0]), "tool_calls"),
    ("qwen3", answered(content=None, function_call=CALLS[0]), None),
    ("first_system", mid_system("Be terse."), "system"),
    ("first_system", mid_system("Why?"), None),
    ("plain", mid_system("Be terse."), None),
    ("qwen3", answered(**HI, reasoning_content="Hm."), None),
    ("qwen3", answered(**HI, function_call=CALLS[0]), "function_call"),
    ("qwen3", {**answered(**HI, tool_calls=OPENAI), "tools": TOOLS}, None),
]


@pytest.mark.parametrize("template", ["plain", "first_system", "either", "first", "qwen3"])
def test_what_the_template_does_not_write_is_rejected(
    template: str, tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    cases = [(record, key) for name, record, key in UNWRITTEN if name == template]
    outcomes = read_back([record for record, _ in cases], tokenizer(template), tmp_path)
    for (record, key), outcome in zip(cases, outcomes, strict=True):
        assert outcome.reason == (None if key is None else "not_rendered"), record
        assert key is None or key in str(outcome.detail)


def test_what_is_ignored_by_name_is_accepted(
    tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    records = [
        answered(**HI, reasoning_content="Hm."),
        {**answered(**HI), "tools": TOOLS},
        answered(**HI, tool_calls=OPENAI),
        answered(**HI, rationale="It is so."),
    ]
    names = ("rationale", "reasoning_content", "tools", "tool_calls")
    ignored = [word for name in names for word in ("--ignore", name)]
    outcomes = read_back(records, tokenizer("plain"), tmp_path, ignored)
    assert [outcome.trained for outcome in outcomes] == [f"Hi.{END}"] * 4


def test_reasoning_of_earlier_turns_may_be_left_out(
    tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    """Qwen3's template writes the reasoning behind the last question alone."""

    def talk(*thoughts: str) -> dict[str, Any]:
        turns: list[dict[str, Any]] = []
        for thought in thoughts:
            turns.append({"role": "user", "content": "Why?"})
            turns.append({"role": "assistant", **HI, "reasoning_content": thought})
        return {"messages": turns}

    records = [talk("One.", "Two."), talk("", "Two."), talk("One.", "")]
    outcomes = read_back(records, tokenizer("qwen3"), tmp_path)
    assert [outcome.reason for outcome in outcomes] == [None, None, "not_rendered"]
    assert "Two." in str(outcomes[0].trained) and "One." not in str(outcomes[0].trained)


FLAGS: list[tuple[str, Any, bool | None]] = [  # whether the first answer is trained; None: rejected
    *((key, False, False) for key in ("train_on_turn", "is_train", "compute_loss", "trainable")),
    *((key, 1, True) for key in ("train_on_turn", "is_train", "compute_loss", "trainable")),
    *(("loss_scale", 0, False), ("loss_scale", 1.0, True), ("loss_scale", 0.5, None)),
    *(("learn", False, False), ("train_on_turn", "false", None), ("weight", [1, 0], None)),
]
OF_RECORD: list[tuple[str, Any, bool]] = [
    *(("loss_mask", [0, 1, 0, 1], False), ("train_on_inputs", True, False)),
    *(("train_on_inputs", False, True), ("train_on_last_turn", True, False)),
    *(("train_on_responses_only", True, True), ("train_on_prompt", 1, False)),
    *(("loss_scale", 0.3, False), ("is_train", False, False), ("mask_history", True, False)),
    *(("train_mask", [0, 1], False), ("weights", [0, 1], False), ("loss_turns", [2], False)),
    *((name, True, False) for name in ("only_last_turn_loss", "loss_on_last", "train_masks")),
    *(("mask", role, False) for role in ("gpt", "assistant", "User")),
    *(("split", "train", True), ("train_id", 1, True), ("is_training", True, True)),
    *(("mask", "a.txt", True), ("loss_type", "ce", True), ("loss_value", 1.5, True)),
    *(("weights", [0.2, 0.8], True), ("only_last_turn_loss", False, True)),
    *(("loss_mask", None, True), ("compute_loss", True, True), ("trained_by", "me", True)),
]


def test_loss_flags_are_obeyed_or_rejected(
    tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    one, two = ({"role": "assistant", "content": text} for text in ("One.", "Two."))
    asked = {"role": "user", "content": "Why?"}
    records = [{"messages": [asked, {**one, key: value}, asked, two]} for key, value, _ in FLAGS]
    records += [{"messages": [asked, one, asked, two], key: value} for key, value, _ in OF_RECORD]
    records += [{"messages": [{**asked, "train_on_turn": False}, one, asked, two]}]
    outcomes = read_back(records, tokenizer("plain"), tmp_path)
    both = f"One.{END}Two.{END}"
    wanted = {True: both, False: f"Two.{END}", None: None}
    for (key, value, expected), outcome in zip(FLAGS, outcomes, strict=False):
        assert outcome.trained == wanted[expected], (key, value)
        if expected is None:
            assert outcome.reason == "bad_turn" and key in str(outcome.detail)
    for (key, value, accepted), outcome in zip(OF_RECORD, outcomes[len(FLAGS) :], strict=False):
        assert outcome.trained == (both if accepted else None), (key, value)
        assert accepted or outcome.reason == "unused_column"
    assert outcomes[-1].trained == both
