"""Lengths counted by an encoder that is not ours are what that encoder returns."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from packidx_cli.main import main
from PIL import Image

from packidx import estimate_lengths
from packidx.errors import BadRecord, OptionError

IMAGE, VIDEO = 1, 2


def read(folder: Path) -> list[dict[str, Any]]:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    tables = [pq.read_table(folder / entry["path"]) for entry in manifest["files"]]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def write(path: Path, records: list[Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def by_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """One token a word, a label for all but the first two."""
    words = record["messages"][0]["content"].split()
    ids = list(range(len(words)))
    return {"input_ids": ids, "labels": [-100, -100, *ids[2:]][: len(ids)]}


def estimate(
    tmp_path: Path, records: list[Any], encode: Any, **options: Any
) -> list[dict[str, Any]]:
    shard = write(tmp_path / "data.jsonl", records)
    estimate_lengths(shard, tmp_path / "lengths", encode=encode, workers=1, **options)
    return read(tmp_path / "lengths")


def test_ids_and_labels_are_counted(tmp_path: Path) -> None:
    rows = estimate(tmp_path, [chat("a b c d"), chat("a"), chat("a b")], by_words)
    assert [row["length"] for row in rows] == [4, 1, 2]
    assert [row["label_tokens"] for row in rows] == [2, 0, 0]
    assert [row["text_tokens"] for row in rows] == [4, 1, 2]
    assert {row["method"] for row in rows} == {"exact"}
    manifest = json.loads((tmp_path / "lengths" / "manifest.json").read_text())
    assert manifest["encoder"] == {"fingerprint": None, "name": f"{__name__}:by_words"}


@pytest.mark.parametrize(
    ("given", "length", "labels"),
    [
        ({"input_ids": np.zeros((1, 5), np.int32)}, 5, 4),  # labels default to the ids
        ({"input_ids": [1, 2], "labels": None}, 2, 1),
        ({"input_ids": []}, 0, 0),
        ({"input_ids": np.arange(3), "labels": np.full((1, 3), -100)}, 3, 0),
        ({"input_ids": [1, 2, 3], "labels": [7, -100, 7]}, 3, 1),  # nothing predicts the first
    ],
)
def test_shapes_as_the_reader_takes_them(
    tmp_path: Path, given: dict[str, Any], length: int, labels: int
) -> None:
    (row,) = estimate(tmp_path, [chat("x")], lambda record: given)
    assert (row["length"], row["label_tokens"], row["status"]) == (length, labels, "ok")


def fail(record: Mapping[str, Any]) -> Any:
    raise KeyError("nothing here")


def refuse(record: Mapping[str, Any]) -> Any:
    raise BadRecord("too_boring", "nobody learns from this")


@pytest.mark.parametrize(
    ("encode", "reason", "detail"),
    [
        (fail, "encode_failed", "KeyError: 'nothing here'"),
        (refuse, "too_boring", "nobody learns from this"),
        (lambda record: [1, 2], "encode_failed", "it returned list, not a dict with input_ids"),
        (
            lambda record: {"ids": [1]},
            "encode_failed",
            "it returned ids, not a dict with input_ids",
        ),
        (lambda record: {"input_ids": [[1], [2]]}, "encode_failed", "shape [2, 1], not [T] or"),
        (lambda record: {"input_ids": [0.5]}, "encode_failed", "type float64, not integers"),
        (lambda r: {"input_ids": [1], "labels": [1, 2]}, "encode_failed", "shape [2], not [1]"),
        *(
            (lambda r, grid=grid: {"input_ids": [1], "image_grid_thw": grid}, "encode_failed", said)
            for grid, said in (([1, 2, 3], "of shape [3]"), ([[1, 8192, 8192]], "is no grid"))
        ),
    ],
)
def test_what_cannot_be_encoded_is_a_rejected_row(
    tmp_path: Path, encode: Any, reason: str, detail: str
) -> None:
    def only_the_second(record: Mapping[str, Any]) -> Any:
        return encode(record) if record["id"] == 1 else by_words(record)

    rows = estimate(tmp_path, [chat("a b", id=number) for number in range(3)], only_the_second)
    assert [row["status"] for row in rows] == ["ok", "rejected", "ok"]
    assert rows[1]["reason"] == reason
    assert detail in rows[1]["detail"]


class Counting:
    """An encoder with a count, which alone is asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = iter(answers)

    def __call__(self, record: Mapping[str, Any]) -> Any:
        raise AssertionError("count() is there to be asked")

    def count(self, record: Mapping[str, Any]) -> Any:
        answer = next(self.answers, len(record["messages"][0]["content"]))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def fingerprint(self) -> str:
        return "counting-1"


@pytest.mark.parametrize(
    ("answer", "words"),
    [(2**40, "1099511627776"), (True, "True"), (-1, "-1"), (SystemExit(3), "SystemExit: 3")],
)
def test_counts_that_make_no_sense(tmp_path: Path, answer: Any, words: str) -> None:
    """Each costs its own record, even where the encoder wants to leave the program."""
    rows = estimate(tmp_path, [chat("a b")] * 3, Counting(np.int64(7), answer))
    assert [row["status"] for row in rows] == ["ok", "rejected", "ok"]
    assert (rows[1]["reason"], rows[0]["length"]) == ("encode_failed", 7)
    assert words in rows[1]["detail"]


def test_count_is_asked_instead(tmp_path: Path) -> None:
    rows = estimate(tmp_path, [chat("abc"), chat("abcde")], Counting())
    assert [row["length"] for row in rows] == [3, 5]
    assert [row["label_tokens"] for row in rows] == [None, None]
    manifest = json.loads((tmp_path / "lengths" / "manifest.json").read_text())
    assert manifest["encoder"]["fingerprint"] == "counting-1"
    again = estimate_lengths(
        str(tmp_path / "data.jsonl"), tmp_path / "lengths", encode=Counting(), workers=1
    )
    assert again.existed


def patches(record: Mapping[str, Any]) -> dict[str, Any]:
    """A token per patch of each image or video, between tokens of text."""
    ids, types, grids = [0], [0], []
    for image in record["images"]:
        width, height = image.size  # opened: sizes are pixels
        grids.append([1, height, width])
        ids += [1] * (width * height) + [0]
        types += [IMAGE] * (width * height) + [0]
    return {"input_ids": ids, "mm_token_type_ids": types, "image_grid_thw": np.array(grids)}


def test_media_columns_are_what_the_encoder_says(tmp_path: Path) -> None:
    for size in ((2, 3), (4, 1)):
        Image.new("RGB", size).save(tmp_path / f"{size[0]}.png")
    record = chat("<image>and<image>", images=["2.png", "4.png"])
    (row,) = estimate(tmp_path, [record], patches)
    assert (row["length"], row["text_tokens"], row["image_tokens"]) == (13, 3, 10)
    assert (row["vision_patches"], row["vision_cost"]) == (10, 36 + 16)
    assert (row["num_images"], row["num_turns"]) == (2, 1)
    assert row["media"] == [
        {"kind": "image", "tokens": 6, "patches": 6, "t": 1, "h": 3, "w": 2, "at": 1},
        {"kind": "image", "tokens": 4, "patches": 4, "t": 1, "h": 1, "w": 4, "at": 8},
    ]


def test_what_the_encoder_does_not_say_is_unknown(tmp_path: Path) -> None:
    Image.new("RGB", (2, 3)).save(tmp_path / "2.png")

    def silent(record: Mapping[str, Any]) -> dict[str, Any]:
        return {"input_ids": [1] * 9}

    row, strange = estimate(
        tmp_path, [chat("<image>", images=["2.png"]), {"question": "of no known dialect"}], silent
    )
    assert (row["length"], row["text_tokens"], row["image_tokens"]) == (9, None, None)
    assert (row["vision_patches"], row["num_images"]) == (None, 1)
    assert row["media"][0] == {
        **dict.fromkeys(("tokens", "patches", "t", "h", "w", "at")),
        "kind": "image",
    }
    assert (strange["status"], strange["length"], strange["num_images"]) == ("ok", 9, None)
    assert (strange["image_tokens"], strange["vision_patches"], strange["media"]) == (None,) * 3


def test_media_that_cannot_be_opened_are_rejected_as_ever(tmp_path: Path) -> None:
    (row,) = estimate(tmp_path, [chat("<image>", images=["none.png"])], patches)
    assert (row["status"], row["reason"]) == ("rejected", "missing_media")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the current directory, which is all that makes it importable."""
    (tmp_path / "my_encoders.py").write_text(
        """
class ByWords:
    def __init__(self, extra=0):
        self.extra = extra

    def __call__(self, record):
        return {"input_ids": [0] * (len(record["messages"][0]["content"].split()) + self.extra)}

    def fingerprint(self):
        return f"by words {self.extra}"


def make():
    return ByWords()

one_more = ByWords(1)
number = 3
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_encoders", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "extra"),
    [("my_encoders:ByWords()", 0), ("my_encoders:make()", 0), ("my_encoders:one_more", 1)],
)
def test_by_name_with_any_number_of_workers(module: Path, name: str, extra: int) -> None:
    for shard in "ab":
        write(module / f"{shard}.jsonl", [chat("word " * number) for number in range(1, 50)])
    import packidx.estimate.tasks as work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "TASK_BYTES", 100)
        made = [
            estimate_lengths(["a.jsonl", "b.jsonl"], f"out{workers}", encode=name, workers=workers)
            for workers in (1, 2)
        ]
    assert made[0].num_parts == 2
    assert made[0].fingerprint == made[1].fingerprint
    assert [row["length"] for row in read(module / "out2")] == [
        number + extra for number in range(1, 50)
    ] * 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_encoders", "write module:NAME"),
        ("my_encoders:none", "no attribute 'none'"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("my_encoders:ByWords", "is a class: write my_encoders:ByWords\\(\\)"),
        ("my_encoders:number", "is int, which cannot be called"),
    ],
)
def test_names_that_lead_nowhere(module: Path, name: str, words: str) -> None:
    write(module / "a.jsonl", [chat("x")])
    with pytest.raises(OptionError, match=words):
        estimate_lengths("a.jsonl", "out", encode=name, workers=1)
    assert not (module / "out").exists()


def test_on_the_command_line(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(module / "a.jsonl", [chat("word " * number) for number in range(1, 30)])
    name = "my_encoders:make()"
    assert main(["estimate", "a.jsonl", "-o", "out", "--encode", name, "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "29 exact" in out
    assert err == ""
    assert main(["plan", "out", "-o", "index", "--capacity", "40"]) == 0
    assert main(["verify", "index", "--encode", name, "--sample", "29", "--json"]) == 0
    capsys.readouterr()
    assert main(["verify", "index", "--encode", "my_encoders:one_more", "--sample", "1"]) == 3
    assert "by words 1" in capsys.readouterr().out
    assert main(["verify", "index", "--encode", name, "--processor", "x"]) == 1
    assert "one of them" in capsys.readouterr().err
