"""Records of a shape that is not known: their keys are printed, and nothing is guessed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from PIL import Image

from packidx import estimate_lengths
from packidx.estimate.summary import described

ASKED, ANSWERED = "What is it?", "A cat, 猫."


def jsonl(folder: Path, *records: dict[str, Any]) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return "a.jsonl"


def talk(role: str, said: str, user: str, assistant: str, before: str = "") -> list[dict[str, str]]:
    return [{role: user, said: before + ASKED}, {role: assistant, said: ANSWERED}]


TALK = talk("role", "content", "user", "assistant")
QUESTION = {"question": ASKED, "answer": ANSWERED}
MISREAD: dict[str, dict[str, Any]] = {  # by columns that look like an answer, a medium or a text
    "the unsafe answer": {"prompt": ASKED, "response_0": "Kill.", "response_1": "No."},
    "a model's answer": {"question": ASKED, "model_answer": "A dog.", "human_answer": ANSWERED},
    "bytes and path of a picture": {"messages": TALK, "img_bytes": "/9j/AA==", "img_path": "a.png"},
    "a thumbnail": {**QUESTION, "image": "a.png", "thumbnail": "b.png"},
    "a document and its summary": {"document": "It was dark. It rained.", "summary": "Rain."},
    "an article and highlights": {"article": "It was dark. It rained.", "highlights": "Rain."},
    "a passage": {"title": "A cat", "passage": "It was dark.", "label_text": "good"},
    "turns of another name": {"chat": TALK},
    "roles of another name": {"messages": [{"role": "hooman", "content": ASKED}]},
    "a misspelt column": {"qestion": ASKED, "anwser": ANSWERED},
    "context": {**QUESTION, "context": "It purrs in the sun."},
}


@pytest.mark.parametrize("case", MISREAD)
def test_no_column_is_guessed(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys of a record are printed, and no option that makes another record of it."""
    record = MISREAD[case]
    name = jsonl(tmp_path, record)
    Image.new("RGB", (70, 70)).save(tmp_path / "a.png")
    assert main(["estimate", str(tmp_path / name), "-o", str(tmp_path / "l")]) == 1
    told = capsys.readouterr()
    [row] = pq.read_table(sorted((tmp_path / "l").glob("part-*.parquet"))).to_pylist()
    said = f"{told.out}{told.err}{row['detail']}"
    assert row["status"] == "rejected"
    assert not re.search(r"--(?:column|tag) \w+=\w|--pair \w", said)
    if row["reason"] != "unused_column":
        assert all(f"{key}: " in told.err for key in record) and "docs/data.md" in told.err


def test_keys_are_printed_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = jsonl(tmp_path, {"data\x1b[31m": {"turns": [1, 2]}, "n": None, "ok": True})
    assert main(["estimate", str(tmp_path / name), "-o", str(tmp_path / "l")]) == 1
    told = capsys.readouterr().err
    assert "a.jsonl#0 holds data\\x1b[31m: an object, n: null, ok: a boolean" in told


def test_a_stated_column_that_no_record_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = talk("role", "content", "user", "assistant", "<image>")
    name = jsonl(tmp_path, {"messages": turns, "images": ["a.png"]})
    command = ["estimate", str(tmp_path / name), "-o", str(tmp_path / "l"), "--max-rejected", "1"]
    assert main([*command, "--column", "images=photos", "--column", "system=rules"]) == 0
    told = capsys.readouterr()
    for column, use in (("photos", "images"), ("rules", "system")):
        said = f"no record of a has a column '{column}', which is stated to hold its {use}: they"
        assert f"warning: {said} have images, messages\n" in told.err
    assert "--ignore" not in told.out
    assert "the record has no column 'photos'" in " ".join(told.out.split())


def test_less_than_one_in_a_hundred_says_nothing(tmp_path: Path) -> None:
    good = {"messages": talk("role", "content", "user", "assistant")}
    bad = {"chat": talk("role", "content", "user", "assistant")}
    for number, is_told in ((199, False), (99, True)):
        name = jsonl(tmp_path, *[good] * number, bad)
        summary = estimate_lengths(str(tmp_path / name), tmp_path / "l", workers=1)
        assert summary.num_rejected == 1 and bool(summary.mistaken) == is_told
    [told] = summary.mistaken
    assert (told.source, told.num_rejected, told.num_samples, told.record) == (
        "a",
        1,
        100,
        "a.jsonl#99",
    )


def test_media_that_are_missing_are_no_shape(tmp_path: Path) -> None:
    turns = talk("role", "content", "user", "assistant")
    turns[0]["content"] = "<image>" + ASKED
    name = jsonl(tmp_path, {"messages": turns, "images": ["none.png"]})
    summary = estimate_lengths(str(tmp_path / name), tmp_path / "l", workers=1, max_rejected=1)
    assert summary.rejected == {"missing_media": 1} and summary.mistaken == []


def test_wide_tables_stay_one_line() -> None:
    text = described({f"Spalte {n}": [{"a": n}] for n in range(200)})
    assert len(text) == 300 and "\n" not in text and text.endswith("…")
    assert text.startswith("Spalte 0: a list, Spalte 1: a list, ")
