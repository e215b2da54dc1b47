"""Records of a shape that is not known: what they hold is told, and the line to type works."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from PIL import Image

from packidx import estimate_lengths
from packidx.records.hints import described

ASKED, ANSWERED = "What is it?", "A cat, 猫."


def jsonl(folder: Path, *records: dict[str, Any]) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return "a.jsonl"


def table(folder: Path, name: str, delimiter: str, *rows: list[str]) -> str:
    with open(folder / name, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return name


def parquet(folder: Path, **columns: list[Any]) -> str:
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return "a.parquet"


def talk(role: str, said: str, user: str, assistant: str, before: str = "") -> list[dict[str, str]]:
    return [{role: user, said: before + ASKED}, {role: assistant, said: ANSWERED}]


SHAPES: dict[str, Callable[[Path], str]] = {
    "another column": lambda f: jsonl(f, {"chat": talk("role", "content", "user", "assistant")}),
    "known column, other keys": lambda f: jsonl(
        f, {"conversation": talk("author", "body", "human", "bot")}
    ),
    "JSON in a table": lambda f: table(
        f, "a.csv", ",", ["id", "talk"], ["1", json.dumps(talk("from", "value", "human", "gpt"))]
    ),
    "tabs": lambda f: table(f, "a.tsv", "\t", ["user_question", "final_answer"], [ASKED, ANSWERED]),
    "Parquet": lambda f: parquet(f, problem=[ASKED], solution=[ANSWERED], level=[3]),
    "pictures": lambda f: jsonl(
        f, {"dialog": talk("from", "value", "human", "gpt", "<image>"), "photo": "a.png"}
    ),
    "alt texts": lambda f: jsonl(f, {"filename": "a.png", "alt_text": ANSWERED}),
    "a text of another name": lambda f: jsonl(
        f, {"article": ANSWERED, "url": "https://x.example/1"}
    ),
    "letters and a picture": lambda f: table(
        f, "a.csv", ",", ["file", "q", "a", "annotator"], ["a.png", ASKED, ANSWERED, "x"]
    ),
    "question and answer with a picture": lambda f: table(
        f, "a.csv", ",", ["img_path", "the_question", "the_answer"], ["a.png", ASKED, ANSWERED]
    ),
}


ASKING = SHAPES.keys() - {"alt texts", "a text of another name"}

NO_GUESS: dict[str, dict[str, Any]] = {  # words that are not words of their own, or mean a number
    "ids": {"question_id": "a1", "answer_id": "b2"},
    "a task": {"task": "translate it", "target": "a text"},
    "an id and a label": {"id": "7", "label": "cat"},
    "a title": {"title": "A cat on a mat", "year": 1999},
    "one text alone": {"comment": "What a day."},
    "numbers": {"question": 1, "answer": 2},
    "codes": {"query": "q7", "reply": "r8"},
    "a question whose choices are apart": {
        "user_question": "Which one?",
        "options": [["a cat"], ["a dog"]],
        "final_answer": "a cat",
    },
}


@pytest.mark.parametrize("shape", NO_GUESS)
def test_nothing_is_guessed_from_parts_of_words(shape: str, tmp_path: Path) -> None:
    path = str(tmp_path / jsonl(tmp_path, NO_GUESS[shape]))
    summary = estimate_lengths(path, tmp_path / "l", workers=1, max_rejected=1)
    [told] = summary.mistaken
    assert (told.options, told.nearest, told.sample) == ([], None, None)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_line_that_is_told_works(
    shape: str,
    processors: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (70, 70)).save("a.png")
    given = ["estimate", SHAPES[shape](tmp_path), "-o", "l", "--workers", "1"]
    given += ["--processor", str(processors / "qwen2.5-vl")]
    assert main(given) == 1
    told = [line.strip() for line in capsys.readouterr().err.splitlines()]
    [options] = [line.partition(". Add: ")[2] for line in told if ". Add: " in line]
    [seen] = [text for text in told if text.startswith("Then it is read as ")]
    assert seen.endswith(ANSWERED) and (shape not in ASKING or ASKED in seen)
    assert main([*given, *shlex.split(options), "--show", "3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["num_rejected"], summary["mistaken"]) == (0, [])
    [sample] = summary["shown"]
    [trained] = [run["text"] for run in sample["runs"] if run["trained"]]
    # A document's first token is predicted by nothing.
    expected = ANSWERED.removeprefix("A") if shape == "a text of another name" else ANSWERED
    assert trained == expected + "<|im_end|>"
    has_picture = any("<|image_pad|>" in run["text"] for run in sample["runs"])
    assert has_picture == ("picture" in shape or shape == "alt texts")


def test_pairs_name_all_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = jsonl(tmp_path, {"prompt": ASKED, "chosen": ANSWERED, "rejected": "No."})
    assert main(["estimate", str(tmp_path / name), "-o", str(tmp_path / "l")]) == 1
    told = capsys.readouterr().err
    assert "preference pairs. Add: --pair chosen (or rejected, or both)" in told


def test_where_nothing_fits_a_function_is_sketched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = jsonl(tmp_path, {"data\x1b[31m": {"turns": [1, 2]}, "n": None, "ok": True})
    assert main(["estimate", str(tmp_path / name), "-o", str(tmp_path / "l")]) == 1
    told = capsys.readouterr().err
    assert "a.jsonl#0 holds data\\x1b[31m: an object, n: null, ok: a boolean" in told
    assert (
        "No --column or --tag reads them: mend such records" in told
        and "--transform mymodule:known" in told
    )


MISSPELT: dict[str, tuple[dict[str, Any], list[str], list[str], list[str]]] = {
    "a stated column that is not there": (
        {"messages": talk("role", "content", "user", "assistant")},
        ["--column", "messages=turns"],
        [],
        ["--column", "messages=turns"],
    ),
    "another one, misspelt": (
        {"chat": talk("role", "content", "user", "assistant")},
        ["--column", "messages=caht"],
        ["--column", "messages=chat"],
        ["--column", "messages=caht"],
    ),
    "roles": (
        {"messages": talk("role", "content", "hooman", "ai")},
        [],
        ["--tag", "assistant_tag=ai", "--tag", "user_tag=hooman"],
        [],
    ),
    "question and answer": (
        {"qestion": ASKED, "anwser": ANSWERED},
        [],
        ["--column", "prompt=qestion", "--column", "response=anwser"],
        [],
    ),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_the_nearest_line_is_told(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, given, add, wrong = MISSPELT[case]
    command = ["estimate", str(tmp_path / jsonl(tmp_path, record)), "-o", str(tmp_path / "l")]
    assert main([*command, *given]) == 1
    told = capsys.readouterr().err
    assert (f". Add: {shlex.join(add)}\n" in told) == bool(add)
    assert (f"Leave out: {shlex.join(wrong)}\n" in told) == bool(wrong)
    assert main([*command, *add]) == 0


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
    assert told.options == ["--column", "messages=chat"]


def test_one_of_several_sources_is_told_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"messages": talk("role", "content", "user", "assistant")})
    )
    name = jsonl(tmp_path, {"chat": talk("role", "content", "user", "assistant")})
    files = [str(tmp_path / file) for file in (name, "b.jsonl")]
    assert main(["estimate", *files, "-o", str(tmp_path / "l"), "--max-rejected", "1"]) == 0
    told = capsys.readouterr().err
    assert "Add, for this source alone or in its entry of a mix: --column messages=chat" in told


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
