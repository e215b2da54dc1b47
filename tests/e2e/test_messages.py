"""Messages and answers through the command line and the reader: trained or rejected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)  # noqa: F401  (before transformers)
import transformers
from packidx_cli.main import main
from PIL import Image
from processors import trl_template

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, SourceError
from packidx.records.read import parse_record
from packidx.torch import PackedDataset


@dataclass(frozen=True)
class Outcome:
    """One record."""

    reason: str | None
    """None if it is accepted."""
    detail: str | None
    length: int
    trained: str | None
    """The text of its label tokens, as the reader gives them; None if it is rejected."""


def read_back(
    records: Sequence[dict[str, Any]], processor: Path, folder: Path, options: Sequence[str] = ()
) -> list[Outcome]:
    """Write `records` as JSON Lines, count and plan them, and read the packs."""
    path, lengths, index = (str(folder / name) for name in ("r.jsonl", "lengths", "index"))
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["estimate", path, "-o", lengths, "--processor", str(processor), "--workers", "1"]
    assert main([*command, "--max-rejected", "1", "--quiet", *options]) == 0
    rows = pq.read_table(sorted((folder / "lengths").glob("part-*.parquet"))).to_pylist()
    trained: dict[int, str] = {}
    if any(row["status"] == "ok" for row in rows):
        plan = ["plan", lengths, "-o", index, "--capacity", "8192", "--quiet"]
        assert main(plan) == 0
        encoder = ProcessorEncoder(str(processor))
        for pack in PackedDataset(index, encoder):
            joined = pack.joined()
            borders = joined["cu_seqlens"].tolist()
            for number, sample_id in enumerate(joined["sample_ids"].tolist()):
                labels = joined["labels"][borders[number] : borders[number + 1]]
                tokenizer: Any = encoder.files.tokenizer
                trained[sample_id] = tokenizer.decode(
                    labels[labels >= 0].tolist(), skip_special_tokens=False
                )
    return [
        Outcome(row["reason"], row["detail"], row["length"], trained.get(row["sample_id"]))
        for row in rows
    ]


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


Read = Callable[..., list[Outcome]]


@pytest.fixture
def read(processors: Path, tmp_path: Path) -> Read:
    processor = processors / "qwen2.5-vl"
    return lambda records, *options: read_back(records, processor, tmp_path, options)


ASKED = {"question": "Which?"}
IN_QUESTION = {"question": "Which?\nA. red\nB. green\nC. blue"}
ANSWERS = [
    '["red", "blue"]',
    '{"text": "hello", "lang": "en"}',
    "['a', 'b']",
    '{"answer": {"answer": 3}}',
    "[['x'], ['y']]",
    '[{"answer": "x"}, {"answer": "x"}]',
    "['r' 's']",
    "3.50",
    '"quoted"',
    " [1, 2]\n",
]


def test_text_is_text(read: Read) -> None:
    """An answer that is JSON or a Python literal is trained byte for byte."""
    outcomes = read([{**ASKED, "answer": text} for text in ANSWERS])
    assert [outcome.trained for outcome in outcomes] == [f"{text}<|im_end|>" for text in ANSWERS]


RED = {"answers": ["red", "green"]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"answers beside {name}": ({**RED, name: value}, "bad_turn")
        for name, value in {
            "correct_answer": "green",
            "label": 1,
            "scores": [0.1, 0.9],
        }.items()
    },
    "answers that differ": ({"answers": ["red", "dark red"]}, "bad_turn"),
    "an answer that is a list": ({"answer": ["red", "blue"]}, "bad_turn"),
    "VQA's annotators": ({"answers": [{"answer": "a"}, {"answer": "b"}]}, "bad_turn"),
    "SQuAD's": ({"answers": {"text": ["a", "b"], "answer_start": [1, 2]}}, "bad_turn"),
    "lists in lists": ({"answers": [["a", "b"]]}, "bad_turn"),
    "an object": ({"answer": {"text": "hello", "reason": "It is polite."}}, "bad_turn"),
    "a wrong one": ({"answer": {"text": "hello", "is_correct": False}}, "bad_turn"),
    "answers in a cell": ({"answers": '["red", "blue"]'}, "bad_turn"),
    "a letter of answers": ({"answers": ["red", "green"], "answer": "B"}, "unused_column"),
    "a number, choices in the question": ({**IN_QUESTION, "answer": 1}, "bad_turn"),
    **{
        f"{question!r} and {answer!r}": ({"question": question, "answer": answer}, "bad_turn")
        for question, answer in [
            ("Which?\n1. red\n2. green\n3. blue", 0),
            ("(A) red (B) green", "1"),
            ("I) red II) green III) blue", "0"),
        ]
    },
    **{
        f"another {name}": ({**IN_QUESTION, "answer": "red", name: value}, "unused_column")
        for name, value in {
            "gold": ["blue", "green"],
            "response": "blue",
        }.items()
    },
    **{
        f"a verdict, {name} {value!r}": ({"answer": "red", name: value}, "unused_column")
        for name, value in [
            *(("is_correct", False), ("label", "wrong"), ("label", 0.0)),
        ]
    },
    "an empty response": ({"response": ""}, "bad_turn"),
    "an empty cell": ({"output": "nan"}, "bad_turn"),
}


CHOICES: dict[str, dict[str, Any]] = {
    "choices": {"choices": ["red", "green"], "answer": 0},
    "answerKey": {"choices": {"text": ["red", "green"], "label": ["A", "B"]}, "answerKey": "B"},
    "option_a": {"option_a": "red", "option_b": "green", "answer": "B"},
    "candidates": {"candidates": ["red", "green"], "answer": "red"},
    "options": {**IN_QUESTION, "options": ["red", "green", "blue"], "answer": "B"},
    "no choices": {"choices": [], "answer": 1},
    "A": {"A": "red", "B": "green", "answer": "B"},
    "multiple_choices": {"multiple_choices": ["red", "green"], "answer": "red"},
}


@pytest.mark.parametrize("record", CHOICES.values(), ids=CHOICES)
def test_choices_are_named_before_counting(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**ASKED, **record}) + "\n")
    named = sorted(record.keys() - {"question", "answer", "answerKey"})
    with pytest.raises(SourceError, match=f"--ignore {','.join(named)} "):
        estimate_lengths(path, tmp_path / "l", workers=1)
    assert estimate_lengths(path, tmp_path / "l", workers=1, ignore=named).num_rejected == 0
    with pytest.raises(BadRecord, match="choices beside"):
        parse_record({**ASKED, **record})


def test_what_may_be_another_answer_is_rejected(read: Read) -> None:
    outcomes = read([{**ASKED, **record} for record, _ in REFUSED.values()])
    reasons = dict(zip(REFUSED, [each.reason for each in outcomes], strict=True))
    assert reasons == {name: reason for name, (_, reason) in REFUSED.items()}
    for (record, reason), outcome in zip(REFUSED.values(), outcomes, strict=True):
        named = outcome.detail or ""
        assert any(repr(key) in named for key in record), (record, reason)
        assert "--transform" in named


CAPTIONS: list[tuple[dict[str, Any], str | None]] = [
    *(({"caption": "A cat.", "label": label}, "unused_column") for label in (0, 1, True, "1")),
    ({"text": "A cat.", "label": 0}, "unused_column"),
    ({"caption": "A cat.", "is_positive": False}, "unused_column"),
    *(({"caption": caption}, "bad_turn") for caption in ("", " ", "nan")),
    *(({"caption": "A cat.", "label": label}, None) for label in (7, "cat", None)),
    ({"caption": "A cat.", "is_correct": True}, None),
]


def test_captions_that_may_be_wrong_are_rejected(read: Read, tmp_path: Path) -> None:
    Image.new("RGB", (56, 56)).save(tmp_path / "a.png")
    root = ("--media-root", str(tmp_path))
    outcomes = read([{"image": "a.png", **record} for record, _ in CAPTIONS], *root)
    assert [each.reason for each in outcomes] == [reason for _, reason in CAPTIONS]
    (ignored,) = read([{"image": "a.png", **CAPTIONS[0][0]}], *root, "--ignore", "label")
    assert ignored.reason is None
