"""easy-vqa's questions for `train_vqa.py`: dealt to samples, and guessed without looking."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packidx import open_index

Question = tuple[str, str]

TURNS = (1, 2, 8)  # questions per sample: short samples and long ones, as in a real mix
COLOURS = {"black", "blue", "brown", "gray", "green", "red", "teal", "yellow"}
KINDS = ("yes or no", "which colour", "which shape")


def kind_of(answer: str) -> str:
    if answer in ("yes", "no"):
        return KINDS[0]
    return KINDS[1] if answer in COLOURS else KINDS[2]


def deal_questions(corpus: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Each drawing's questions, dealt to samples of `TURNS` questions.

    Of each wording as many are kept with one answer as with another: most blue shapes asked for are
    not there, and a model that always says so is right 4 times in 5 without looking. Negations
    ("is there not a ...") are left out: this model would need hours for them. All samples of a
    drawing have one id: the holdout goes by it, so no drawing is on both sides.
    """
    rng = random.Random("train_vqa")
    lines = (corpus / "vqa_multiturn.jsonl").read_text().splitlines()[:limit]
    drawings = [(record, questions(record)) for record in map(json.loads, lines)]
    counts = Counter(asked for _, all_asked in drawings for asked in all_asked)
    fewest: dict[str, int] = {}
    for (question, _), count in counts.items():
        fewest[question] = min(count, fewest.get(question, count))
    for record, all_asked in drawings:
        asked = [one for one in all_asked if rng.random() < fewest[one[0]] / counts[one]]
        rng.shuffle(asked)
        while asked:
            size = rng.choice(TURNS)
            some, asked = asked[:size], asked[size:]
            yield {"id": record["id"], "image": record["image"], "conversations": turns_of(some)}


def questions(record: dict[str, Any]) -> list[Question]:
    """Questions and answers of a record's conversation, without the negations."""
    values = [turn["value"].removeprefix("<image>\n") for turn in record["conversations"]]
    asked = zip(values[::2], values[1::2], strict=True)
    return [one for one in asked if not {"no", "not"} & set(one[0].split())]


def turns_of(questions: list[Question]) -> list[dict[str, str]]:
    turns = []
    for number, (question, answer) in enumerate(questions):
        turns.append({"from": "human", "value": ("" if number else "<image>\n") + question})
        turns.append({"from": "gpt", "value": answer})
    return turns


def questions_of(out: Path, side: str) -> list[list[Question]]:
    """The questions of each sample on one side of the holdout."""
    lines = (out / "questions.jsonl").read_text().splitlines()
    rows = open_index(out / side).samples(columns=["row"]).column("row").to_pylist()
    return [questions(json.loads(lines[row])) for row in rows]


def guessed(out: Path) -> tuple[Counter[str], Counter[str]]:
    """Kind of question -> how many are held out, and how many one gets right without looking.

    The best one can do then is the answer that the same words had most often in training.
    """
    seen: dict[str, Counter[str]] = {}
    for sample in questions_of(out, "train"):
        for question, answer in sample:
            seen.setdefault(question, Counter())[answer] += 1
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for (question, answer), *_ in questions_of(out, "holdout"):
        asked[kind_of(answer)] += 1
        guesses = seen.get(question, Counter()).most_common(1)  # none for words never seen
        right[kind_of(answer)] += int(bool(guesses) and guesses[0][0] == answer)
    return asked, right
