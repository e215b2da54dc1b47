"""Answers through the command line and the reader: trained as they stand, or rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from PIL import Image
from read_back import Outcome, read_back

from packidx import estimate_lengths
from packidx.errors import BadRecord, SourceError
from packidx.records.read import parse

Read = Callable[..., list[Outcome]]


@pytest.fixture
def read(processors: Path, tmp_path: Path) -> Read:
    processor = processors / "qwen2.5-vl"
    return lambda records, *options: read_back(records, processor, tmp_path, options)


ASKED = {"question": "Which?"}
IN_QUESTION = {"question": "Which?\nA. red\nB. green\nC. blue"}
TEXTS = [
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
    outcomes = read([{**ASKED, "answer": text} for text in TEXTS])
    assert [outcome.trained for outcome in outcomes] == [f"{text}<|im_end|>" for text in TEXTS]


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
        parse({**ASKED, **record})


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
