"""Leftovers: every column and key is used, carried, ignored by name, or refused."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.format.manifest import DEFAULT, Layout
from packidx.records.containers.base import Locator, Record
from packidx.records.conversation import to_record
from packidx.records.read import RecordReader, parse_record

JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 20
STRUCT = {"bytes": JPEG, "path": None}
ASK, REPLY = {"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "Hi there."}
TALK = [ASK, REPLY]
ASKED = {"question": "What is it?", "answer": "A cat."}
CAPTION = {"image": "a.png", "caption": "A cat."}


def uses(record: dict[str, Any], layout: Layout = DEFAULT) -> dict[str, str]:
    """The columns of a record and their uses."""
    columns: dict[str, str] = {}
    read = RecordReader(layout, columns=columns).read(Record(record, Locator(0)))
    assert read.error is None or read.error.reason == "unused_column", read.error
    return columns


def left(record: dict[str, Any], layout: Layout = DEFAULT) -> list[str]:
    return sorted(name for name, use in uses(record, layout).items() if use == "not used")


PROSE = "It purrs, so it is a cat."
TOOL = [{"name": "f"}]
# what is left over: the record
LEFT: dict[str, dict[str, Any]] = {
    **{
        name: {**ASKED, name: PROSE}
        for name in ("Complex_CoT", "thinking_process", "explanation", "solution", "subtitles")
    },
    **{name: {**ASKED, name: PROSE} for name in ("text", "content", "retrieved_docs")},
    **{f"{kind}_id": {**ASKED, f"{kind}_id": 17} for kind in ("image", "video", "audio")},
    "long_caption": {**CAPTION, "long_caption": PROSE},
    "metadata": {"messages": TALK, "metadata": {"system_prompt": PROSE}},
    "info": {"messages": TALK, "info": {"tools": TOOL}},
    **{
        key: {"messages": [ASK, {**REPLY, key: value}]}
        for key, value in {
            "refusal": "No.",
            "channel": "analysis",
            "loss_mask": 0,
            "loss_weights": [1, 0],
            "train_detail": [{"train": False}],
            "注释": "猫",
            "mask": False,
            "segments": TOOL,
        }.items()
    },
    "score": {
        "messages": [{**ASK, "content": [{"type": "text", "text": "Hi", "score": 1}]}, REPLY]
    },
    "crop": {"messages": TALK, "images": [{"path": "a.png", "crop": [0, 0, 9, 9]}]},
    "src": {
        "messages": [
            {**ASK, "content": [{"type": "image", "image": "b.png", "src": "a.png"}]},
            REPLY,
        ]
    },
    **{
        name: {**ASKED, name: value}
        for name, value in {
            "image_path": "a/b.png",
            "img": "a.JPG",
            "bytes": JPEG,
            "b": "/9j/" + "A" * 80,
            "image_1": STRUCT,
            "more": ["b.png"],
            "deep_one": {"a": [{"b": "x.mp4"}]},
            "in_json": '{"files": ["x.wav"]}',
            "turns": TALK,
            "中文": "猫" * 41,
        }.items()
    },
    "jpg": {"messages": TALK, "jpg": JPEG},
    "conversations": {"messages": TALK, "conversations": TALK},
    "loss_mask of ids": {"input_ids": [1, 2, 3], "loss_mask of ids": [0, 1, 1]},
    "targets": {"input_ids": [1, 2, 3], "targets": [-100, 2, 3]},
    "role": {"text": PROSE, "role": "prompter"},
    "解释": {**ASKED, "解释": "因为今天天气很好，我很高兴。"},
}


@pytest.mark.parametrize("name", LEFT)
def test_a_leftover_is_refused_until_it_is_ignored(name: str) -> None:
    assert left(LEFT[name]) == [name]
    assert left(LEFT[name], Layout(ignore=(name,))) == []


CARRIED: dict[str, dict[str, Any]] = {
    "C4": {"text": "Once. upon", "url": "http://x.y/a.html", "timestamp": "2020-01-01T00:00:00Z"},
    "FineWeb": {"text": "Once.", "dump": "CC", "file_path": "s3://x/y.warc.gz", "score": 0.9},
    "img2dataset": {"jpg": JPEG, "caption": "A cat.", "url": "http://x.y/a.jpg", "width": 9},
    "LLaVA": {"id": "a/b.jpg", "image": "c/a/b.jpg", "conversations": TALK},
    "the same text": {**CAPTION, "txt": "A cat."},
    "numbers": {**ASKED, "embedding": [0.1] * 64, "box": [[1, 2]], "ok": True, "type": "open"},
    "ids beside media": {**CAPTION, "image_id": 17, "video_id": ""},
    "nothing in it": {**ASKED, "image_1": None, "context": "", "options": [], "tools": None},
    "BERT": {"input_ids": [1, 2], "attention_mask": [1, 1], "token_type_ids": [0, 0]},
    "lists beside ids": {"input_ids": [1, 2], "boxes": [[1, 2], [3, 4]]},
    "keys of messages": {
        "messages": [{**ASK, "id": "m1", "refusal": None}, {**REPLY, "weight": 0}]
    },
    "stated": {**ASKED, "img": "a.png", "more": "b.png"},
}


@pytest.mark.parametrize("name", CARRIED)
def test_other_values_are_carried(name: str) -> None:
    layout = Layout({"images": "img,more"}) if name == "stated" else DEFAULT
    assert left(CARRIED[name], layout) == []


def test_the_media_of_a_record_that_is_wrong_are_no_leftovers() -> None:
    choices = {**ASKED, "jpg": JPEG, "options": ["red", "blue"]}
    assert uses(choices)["jpg"] == "used" and left(choices) == ["options"]


def test_uses_of_columns() -> None:
    record = {"id": "7", "system": "Be brief.", "messages": TALK, "score": 1, "note": PROSE}
    used = dict.fromkeys(("id", "system", "messages"), "used")
    assert uses(record) == {**used, "score": "carried", "note": "not used"}
    assert uses(record, Layout(ignore=("note",))) == {**used, "score": "carried", "note": "ignored"}


def test_all_leftovers_of_all_sources_are_told_before_counting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data: dict[str, list[dict[str, Any]]] = {
        "a": [ASKED, {**ASKED, "cot": PROSE}],
        "b": [{"messages": [ASK, {**REPLY, "refusal": "No."}], "img": "a.png"}],
        "c": [*[ASKED] * 1000, {**ASKED, "late": PROSE}],
    }
    for name, records in data.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
    paths = [str(tmp_path / f"{name}.jsonl") for name in data]
    command = ["estimate", *paths, "-o", str(tmp_path / "l"), "--max-rejected", "1"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert "(a: cot; b: img, refusal)" in told and not (tmp_path / "l").exists()
    assert "--ignore cot,img,refusal " in told
    assert main([*command, "--ignore", "cot,img,refusal"]) == 0
    rows = pq.read_table(sorted((tmp_path / "l").glob("part-*.parquet"))).to_pylist()
    assert [(row["reason"], row["row"]) for row in rows if row["reason"]] == [
        ("unused_column", 1000)
    ]


# -- 2,000 tables of columns that nobody knows, and of known ones in odd company -------------------

KNOWN = [
    *("images", "image", "video", "jpg", "png", "file_name", "url", "URL", "text", "caption"),
    *("messages", "conversations", "prompt", "query", "question", "answer", "response", "input"),
    *("output", "instruction", "system", "tools", "history", "name", "media_type"),
    *("texts", "labels", "chosen", "_text_tokens", "label", "metadata", "source"),
]
MARK = re.compile(r"w\d+x\d+z")


def random_table(seed: int) -> dict[str, Any]:
    """A record whose texts and names of files hold a word each, as `MARK`, that is nowhere else."""
    rng = random.Random(seed)
    marks = (f"w{seed}x{number}z" for number in range(1000))

    def prose() -> str:
        return f"{next(marks)} and {next(marks)}."

    def value() -> Any:
        name = f"d/{next(marks)}.{rng.choice(('png', 'JPEG', 'mp4', 'wav'))}"
        turn = {rng.choice(("role", "from", "who")): "user", "content": prose()}
        media = [name, [name], {"bytes": None, "path": name}]
        return rng.choice([*media, prose(), {"a": prose()}, [turn], json.dumps([turn]), 3, "en"])

    user, assistant = ({"role": role, "content": prose()} for role in ("user", "assistant"))
    part: dict[str, Any] = {"type": "text", "text": prose()}
    cores: list[dict[str, Any]] = [
        {"messages": [user, assistant]},
        {"messages": [user, {**user, "content": [part]}, assistant]},
        {"question": user["content"], "answer": assistant["content"]},
        {"prompt": user["content"], "response": assistant["content"]},
        {"text": assistant["content"]},
        {"image": "a.png", "caption": assistant["content"]},
    ]
    record = rng.choice(cores)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(KNOWN) if rng.random() < 0.4 else f"k{rng.randrange(10**6)}"
        rng.choice([record, record, assistant, part]).setdefault(name, value())
    items = [*record.items()]
    rng.shuffle(items)
    return dict(items)


def test_nothing_in_2000_random_tables_is_read_past() -> None:
    taken = 0
    for seed in range(2000):
        record = random_table(seed)
        read = RecordReader(columns={}).read(Record(record, Locator(0)))
        if read.conversation is None:
            continue
        taken += 1
        missing = {*MARK.findall(repr(record))} - {*MARK.findall(repr(read.conversation))}
        assert not missing, (seed, record)
        written = to_record(read.conversation, lambda m: {"type": m.kind, m.kind: m.ref})
        assert parse_record(written).turns == read.conversation.turns
    assert 200 < taken < 1500


def test_a_long_word_costs_little() -> None:
    begun = time.process_time()
    assert uses({**ASKED, "blob": "a" * 4_000_000}) == {
        "question": "used", "answer": "used", "blob": "carried"
    }  # fmt: skip
    assert time.process_time() - begun < 5  # quadratic: hours


def test_sparse_columns_cost_little() -> None:
    def seconds(record: dict[str, Any]) -> float:
        reader, begun = RecordReader(columns={}), time.process_time()
        for _ in range(2000):
            reader.read(Record(record, Locator(0)))
        return time.process_time() - begun

    plain = {"messages": TALK * 4, "images": ["a.png"]}
    sparse = plain | {f"column_{number}": None if number % 4 else number for number in range(40)}
    assert min(seconds(sparse) for _ in range(3)) < 1.5 * min(seconds(plain) for _ in range(3))
