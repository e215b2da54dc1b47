"""Data sets that Hugging Face's `datasets` wrote: saved folders and Parquet, images inside."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image
from reading import open_media, read_records, read_row

from packidx.errors import SourceError
from packidx.records.conversation import MediaInfo
from packidx.records.media.opener import media_info
from packidx.records.media.paths import MediaRoot
from packidx.records.read import parse_record
from packidx.records.shards import InputFile, scan_shard
from packidx.records.sources.find_shards import find_shards

datasets.disable_progress_bars()


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (10 + number, 20), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def chat(number: int) -> list[dict[str, Any]]:
    asked = [{"type": "image"}, {"type": "text", "text": f"What, {number}?"}]
    if number % 3 == 0:
        asked = asked[1:]
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]


@pytest.fixture(scope="module")
def data() -> datasets.Dataset:
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "messages": [
                {
                    "role": datasets.Value("string"),
                    "content": [
                        {"type": datasets.Value("string"), "text": datasets.Value("string")}
                    ],
                }
            ],
            "images": datasets.List(datasets.Image()),
        }
    )
    rows = [
        {
            "id": f"r{number}",
            "messages": chat(number),
            "images": [] if number % 3 == 0 else [{"bytes": png(number), "path": None}],
        }
        for number in range(50)
    ]
    return datasets.Dataset.from_list(rows, features=features)


def rows_of(shard: InputFile) -> list[dict[str, Any]]:
    result = scan_shard(shard.path, shard.container, shard.layout)
    found = []
    for part in result.ranges:
        for raw in read_records(shard.path, part, shard.container, shard.layout):
            assert isinstance(raw.data, dict)
            place = (shard.path, *raw.locator)
            again = read_row(*place, kind=shard.container, layout=shard.layout)
            assert again == raw.data
            found.append(raw.data)
    return found


def check(records: list[dict[str, Any]], first: int = 0) -> None:
    for number, record in enumerate(records, first):
        expected = parse_record({"messages": chat(number), "images": ["x"] if number % 3 else []})
        parsed = parse_record(record)
        assert record["id"] == f"r{number}"
        assert [turn.role for turn in parsed.turns] == ["user", "assistant"]
        assert parsed.turns[1] == expected.turns[1]
        assert [part for part in parsed.turns[0].parts if isinstance(part, str)] == [
            f"What, {number}?"
        ]
        assert len(parsed.media) == len(expected.media) == (number % 3 != 0)
        for medium in parsed.media:
            assert media_info(medium, MediaRoot("/nowhere", True)) == MediaInfo(20, 10 + number)
        for medium in parse_record(open_media(record, MediaRoot("/nowhere", True))).media:
            assert isinstance(medium.ref, Image.Image)
            assert medium.ref.size == (10 + number, 20)


def test_a_saved_data_set(tmp_path: Path, data: datasets.Dataset) -> None:
    data.save_to_disk(tmp_path / "chats", num_shards=3)
    (tmp_path / "chats" / "cache-123.arrow").write_bytes(b"no shard")
    shards = find_shards([str(tmp_path / "chats")])
    assert [(Path(s.path).name, s.source, s.container) for s in shards] == [
        (f"data-{number:05d}-of-00003.arrow", "chats", "arrow") for number in range(3)
    ]
    found = [record for shard in shards for record in rows_of(shard)]
    check(found)
    assert len(found) == 50
    (named,) = {shard.source for shard in find_shards([f"mine={tmp_path / 'chats'}"])}
    assert named == "mine"


def test_splits_of_a_saved_dictionary_are_folders(tmp_path: Path, data: datasets.Dataset) -> None:
    split = datasets.DatasetDict(
        {"train": data.select(range(40)), "test": data.select(range(40, 50))}
    )
    split.save_to_disk(tmp_path / "chats")
    with pytest.raises(SourceError, match=f"several splits.*train: {tmp_path}/chats/train"):
        find_shards([str(tmp_path / "chats")])
    (test,) = find_shards([str(tmp_path / "chats" / "test")])
    assert test.source == "test"
    check(rows_of(test), 40)
    meta = {"taken": {"file_name": "chats", "split": "test"}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (taken,) = find_shards([str(tmp_path / "meta.json")])
    assert (taken.source, taken.path) == ("taken", test.path)


def test_a_selection_is_written_out(tmp_path: Path, data: datasets.Dataset) -> None:
    data.select(range(49, 39, -1)).save_to_disk(tmp_path / "some")
    (shard,) = find_shards([str(tmp_path / "some")])
    assert [record["id"] for record in rows_of(shard)] == [f"r{n}" for n in range(49, 39, -1)]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "is not what `datasets` writes"),
        ("{}", "is not what `datasets` writes"),
        ('{"_data_files": [{"filename": "../x.arrow"}]}', "not a file of its folder"),
        ('{"_data_files": [], "_indices_data_files": [{}]}', "flatten_indices"),
        ('{"_data_files": [{"filename": "data.arrow"}]}', "cannot read"),
        ('{"_data_files": []}', "no data file in it"),
    ],
)
def test_folders_that_datasets_did_not_write(tmp_path: Path, state: str, words: str) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(SourceError, match=words):
        find_shards([str(tmp_path)])
