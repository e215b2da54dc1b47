"""`estimate_lengths`: one row per record, the same bytes always, and a table or none."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from record_files import contents

from packidx.errors import OptionError, SourceError
from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.format import schema
from packidx.processor.counter import ConversationCounter
from packidx.records import shards


def chat(text: str = "hello there", **record: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes, it is so."}]
    return {"conversations": turns, **record}


def write(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (r if isinstance(r, bytes) else json.dumps(r).encode() for r in records)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read(folder: Path | str) -> pa.Table:
    manifest = json.loads((Path(folder) / "manifest.json").read_bytes())
    tables = [pq.read_table(Path(folder) / entry["path"]) for entry in manifest["files"]]
    return pa.concat_tables(tables)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two shards of one name, with images and every kind of trouble between good records."""
    root = tmp_path / "data"
    write(
        root / "a" / "train.jsonl",
        [
            chat(id="first"),
            b'{"conversations": [',
            b"",
            chat("<image>\nwhat?", image="cat.png", id=7),
            b'{"a": "\xff"}',
            b"[1]",
            chat("<image>", image="none.png"),
            chat("<image>", image="../../secret.png"),
            chat("<image>", id="two"),
            {"conversations": []},
            chat("<image>", image="thin.png"),
        ],
    )
    write(root / "b" / "train.jsonl", [chat(f"number {n}", key=True) for n in range(30)])
    Image.new("RGB", (60, 40)).save(root / "a" / "cat.png")
    Image.new("RGB", (2100, 10)).save(root / "a" / "thin.png")
    return root


def test_every_record_is_a_row(data: Path, tmp_path: Path, processors: Path) -> None:
    summary = estimate_lengths(
        [str(data)], tmp_path / "out", processor=processors / "qwen2.5-vl", workers=1
    )
    table = read(tmp_path / "out")
    assert table.schema.equals(schema.LENGTHS_WITH_SPANS)
    found = table.to_pylist()
    assert [row["sample_id"] for row in found] == list(range(40))
    assert [row["row"] for row in found] == [*range(10), *range(30)]
    assert [row["reason"] for row in found[:10]] == [
        *(None, "bad_json", None, "bad_utf8", "bad_record", "missing_media"),
        *("media_outside_root", "media_mismatch", "no_messages", "aspect_ratio"),
    ]
    assert [row["key"] for row in found[:4]] == ["first", "a/train.jsonl#1", "7", "a/train.jsonl#3"]
    assert found[7]["key"] == "two"
    assert found[12]["key"] == "b/train.jsonl#2"  # its own key is a boolean
    assert {row["source"] for row in found} == {"a/train", "b/train"}
    good, bad = found[2], found[5]
    assert (good["status"], good["method"], good["image_tokens"]) == ("ok", "exact", 6)
    assert good["length"] == good["text_tokens"] + good["image_tokens"]
    assert (good["num_turns"], good["num_images"], good["num_videos"]) == (2, 1, 0)
    assert (bad["status"], bad["length"], bad["text_tokens"]) == ("rejected", 0, None)
    assert (bad["num_turns"], bad["num_images"]) == (None, None)
    assert summary.num_samples == 40
    assert summary.num_rejected == sum(summary.rejected.values()) == 8
    assert summary.methods == {"exact": 32}
    assert summary.num_tokens == sum(row["length"] for row in found)


def test_workers_do_not_change_a_byte(
    tmp_path: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "word " * 400
    for name in "xyz":
        write(tmp_path / "data" / f"{name}.jsonl", [chat(f"{n} {text}") for n in range(300)])
    processor = processors / "qwen2.5-vl"
    # smaller tasks, so that there are several: only the parent process cuts them
    monkeypatch.setattr(shards, "TASK_BYTES", 200_000)
    monkeypatch.setattr(tasks, "TASK_BYTES", 200_000)
    made = {}
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        estimate_lengths(str(tmp_path / "data"), folder, processor=processor, workers=workers)
        made[workers] = contents(folder)
    assert made[1] == made[2]
    assert len(made[1]) > 4
    ids = read(tmp_path / "out1").column("sample_id").to_pylist()
    assert ids == list(range(900))


def test_batches_do_not_change_a_byte(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate_lengths(str(data), tmp_path / "one", workers=1)
    monkeypatch.setattr(tasks, "BATCH", 3)
    estimate_lengths(str(data), tmp_path / "two", workers=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    def made(folder: str, records: list[Any], **options: Any) -> str:
        shard = write(tmp_path / folder / "a.jsonl", records)
        return estimate_lengths(
            str(shard), tmp_path / folder / "out", workers=1, **options
        ).fingerprint

    one = made("one", [chat("a"), chat("b")])
    assert made("elsewhere", [chat("a"), chat("b")]) == one
    assert made("swapped", [chat("b"), chat("a")]) != one
    assert made("rooted", [chat("a"), chat("b")], media_root=tmp_path) != one


def test_the_same_table_is_left_alone(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.jsonl", [chat("a"), chat("b")])
    out = tmp_path / "out"

    def again(**options: Any) -> LengthsSummary:
        return estimate_lengths(str(shard), out, workers=1, **options)

    first = again()
    before = os.stat(next(out.glob("part-00000*"))).st_ino
    second = again()
    assert (first.existed, second.existed) == (False, True)
    plain = {"existed": False, "seconds": 0.0, "reused": None}
    assert dataclasses.replace(second, **plain) == dataclasses.replace(first, **plain)
    assert os.stat(next(out.glob("part-00000*"))).st_ino == before
    assert not again(media_root=tmp_path).existed


def test_repaired_media_are_looked_at_again(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.jsonl", [chat("<image>", image="new.png")])
    assert estimate_lengths(str(shard), tmp_path / "out", workers=1).rejected == {
        "missing_media": 1
    }
    Image.new("RGB", (9, 9)).save(tmp_path / "new.png")
    summary = estimate_lengths(str(shard), tmp_path / "out", workers=1)
    assert (summary.existed, summary.rejected) == (False, {})


def test_a_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", [chat()] * 200)
    monkeypatch.setattr(shards, "TASK_BYTES", 1000)
    monkeypatch.setattr(tasks, "TASK_BYTES", 1000)
    with pytest.raises(SourceError, match=r"worker process died: most often memory ran out"):
        estimate_lengths(
            [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")],
            tmp_path / "out",
            encode=_die,
            workers=2,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def _die(record: dict[str, Any]) -> dict[str, Any]:
    os._exit(9)


def test_one_record_that_cannot_be_counted_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = ConversationCounter.count

    def fail(self: Any, conversations: Any, sizes: Any) -> Any:
        if any("boom" in c.turns[0].parts for c in conversations):
            raise ValueError("boom")
        return count(self, conversations, sizes)

    monkeypatch.setattr(ConversationCounter, "count", fail)
    shard = write(tmp_path / "a.jsonl", [chat("a"), chat("boom"), chat("b")])
    assert estimate_lengths(str(shard), tmp_path / "out", workers=1).rejected == {"uncountable": 1}
    assert read(tmp_path / "out").column("status").to_pylist() == ["ok", "rejected", "ok"]


def test_bad_options(tmp_path: Path) -> None:
    shard = str(write(tmp_path / "a.jsonl", [chat()]))
    with pytest.raises(OptionError, match="workers"):
        estimate_lengths(shard, tmp_path / "out", workers=0)
    with pytest.raises(SourceError, match="media root"):
        estimate_lengths(shard, tmp_path / "out", media_root=tmp_path / "none")
    assert not (tmp_path / "out").exists()


_good = json.dumps(chat()).encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.lists(
        st.binary(max_size=12) | st.just(_good) | st.integers(0, 99).map(lambda n: _good[:n]),
        max_size=8,
    ).map(b"\n".join)
)
def test_any_bytes_give_one_row_per_line(tmp_path: Path, data: bytes) -> None:
    shard = tmp_path / "any.jsonl"
    shard.write_bytes(data)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [line for line in lines if line.strip()]
    estimate_lengths(str(shard), tmp_path / "out", workers=1)
    found = read(tmp_path / "out")
    assert found.num_rows == len(expected)
    statuses = found.column("status").to_pylist()
    assert [status == "ok" for status in statuses] == [
        line.removesuffix(b"\r") == _good for line in expected
    ]


def test_a_processor_without_a_chat_template_is_an_error_that_names_the_file(
    processors: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A cat."}]
    shard.write_bytes(orjson.dumps({"messages": turns}) + b"\n")
    for file in ("chat_template.jinja", "tokenizer.json"):
        folder = tmp_path / f"without-{file}"
        shutil.copytree(processors / "qwen2.5-vl", folder)
        (folder / file).unlink()
        with pytest.raises(SourceError, match=f"no {file} in {folder}.*leave --processor out"):
            estimate_lengths(str(shard), tmp_path / "out", processor=folder)
        assert not (tmp_path / "out").exists()
    summary = estimate_lengths(str(shard), tmp_path / "guessed", workers=1)
    assert summary.methods == {"heuristic": 1}
    assert summary.num_tokens == len("What is it?A cat.") // 3
