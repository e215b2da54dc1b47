"""Mixes: NeMo's and LLaMA-Factory's meta files, as they are."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reading import read_records
from record_files import chats, write

from packidx.errors import SourceError
from packidx.format.manifest import Layout
from packidx.records.read import parse_record
from packidx.records.shards import InputFile, scan_shard
from packidx.records.sources.find_shards import find_shards


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data sets in a folder below the working directory."""
    data = tmp_path / "mix"
    for name in ("a", "b"):
        (data / name).mkdir(parents=True)
        write(data / name, "jsonl", chats(3))
        write(data / name, "json", chats(2))
    (data / "media").mkdir()
    (tmp_path / "cwd_media").mkdir()
    monkeypatch.chdir(tmp_path)
    return data


def mix(path: Path, value: Any) -> str:
    text = json.dumps(value) if path.suffix == ".json" else yaml.safe_dump(value, sort_keys=False)
    path.write_text(text)
    return str(path)


def first_record(shard: InputFile) -> dict[str, Any]:
    parts = scan_shard(shard.path, shard.container, shard.layout).ranges
    raw = next(read_records(shard.path, parts[0], shard.container, shard.layout))
    assert isinstance(raw.data, dict)
    return raw.data


META = {
    "first": {
        "file_name": "own.jsonl",
        "columns": {"messages": "chat", "images": "pics", "videos": "clips"},
        "tags": {
            "role_tag": "who",
            "content_tag": "text",
            "user_tag": "U",
            "assistant_tag": "A",
            "system_tag": "S",
        },
        "media_dir": "media",
        "sample_ratio": 0.5,
    },
    "second": {"file_name": ["a/data.jsonl", "b/*.json"], "columns": {"messages": "messages"}},
    "third": {"file_name": "b/data.jsonl"},
}
OWN = {
    "chat": [
        {"who": "S", "text": "Be brief."},
        {"who": "U", "text": "<image>What?<video>"},
        {"who": "A", "text": "A cat."},
    ],
    "pics": ["a.png"],
    "clips": [{"path": "v.mp4", "frame_indices": [0, 4, 8], "fps": 2}],
}


@pytest.mark.parametrize("name", ["meta.json", "meta.yaml", "meta.yml"])
def test_meta_files(folder: Path, name: str) -> None:
    (folder / "own.jsonl").write_text(json.dumps(OWN) + "\n")
    path = mix(folder / name, META)
    shards = find_shards([path])
    assert [(Path(s.path).relative_to(folder).as_posix(), s.source) for s in shards] == [
        ("own.jsonl", "first"),
        ("a/data.jsonl", "second"),
        ("b/data.json", "second"),
        ("b/data.jsonl", "third"),
    ]
    assert [s.container for s in shards] == ["jsonl", "jsonl", "json", "jsonl"]
    first = shards[0].layout
    assert first.media_root is not None
    assert Path(first.media_root).samefile(folder / "media")
    assert first.sample_ratio == 0.5
    conversation = parse_record(first_record(shards[0]), shards[0].layout)
    assert [turn.role for turn in conversation.turns] == ["system", "user", "assistant"]
    image, video = conversation.media
    assert (image.kind, image.ref) == ("image", "a.png")
    assert (video.ref, video.stated) == ("v.mp4", {"frame_indices": (0, 4, 8), "fps": 2.0})
    assert shards[3].layout == Layout()


def test_one_data_set_of_a_meta_file(folder: Path) -> None:
    path = mix(folder / "meta.json", {**META, "hub": {"hf_hub_url": "x/y"}})
    assert [s.source for s in find_shards([f"{path}#third"])] == ["third"]
    assert {s.source for s in find_shards([f"{path}#second,third"])} == {"second", "third"}
    assert [s.source for s in find_shards([f"mine={path}#third"])] == ["mine"]
    with pytest.raises(SourceError, match="names no data set 'fourth'"):
        find_shards([f"{path}#fourth"])
    with pytest.raises(SourceError, match=r"'hub': hf_hub_url is 'x/y', which is not here"):
        find_shards([f"{path}#hub"])


def test_llama_factory_formats(folder: Path) -> None:
    alpaca = {"instruction": "Say", "input": "hi", "output": "hi!", "history": [["a", "b"]]}
    named = {"q": "Say", "a": "hi!", "s": "Be kind.", "messages": "not turns"}
    (folder / "alpaca.json").write_text(json.dumps([alpaca]))
    (folder / "named.json").write_text(json.dumps([named]))
    value = {
        "plain": {"file_name": "alpaca.json"},
        "named": {
            "file_name": "named.json",
            "formatting": "alpaca",
            "columns": {"prompt": "q", "response": "a", "system": "s"},
        },
    }
    plain, stated = find_shards([mix(folder / "dataset_info.json", value)])
    assert [turn.parts for turn in parse_record(first_record(plain), plain.layout).turns] == [
        ("a",),
        ("b",),
        ("Say\nhi",),
        ("hi!",),
    ]
    with pytest.raises(Exception, match="no_messages"):
        parse_record(
            first_record(stated), stated.layout
        )  # it has a column of that name, and it is not a list
    (folder / "named.json").write_text(json.dumps([{k: named[k] for k in ("q", "a", "s")}]))
    assert [turn.parts for turn in parse_record(first_record(stated), stated.layout).turns] == [
        ("Be kind.",),
        ("Say",),
        ("hi!",),
    ]


BAD: list[tuple[str, Any, str]] = [
    ("x.yaml", {"a": 1}, "not a mix"),
    ("x.yaml", [1], "not a mix"),
    ("x.yaml", {"datasets": []}, "not a mix"),
    ("x.yaml", {"datasets": [{"path": "a/data.jsonl", "data_type": "jsonl"}]}, "not a mix"),
    ("x.mix.json", {"d": {"root": "media", "annotation": "a/data.jsonl"}}, "holds one object"),
    ("x.mix.json", {"d": {"file_name": "a", "repeat_time": 2}}, "unknown field `repeat_time`"),
    ("x.mix.json", {"d": {"file_name": ""}}, "give a file_name"),
    ("x.mix.json", {"d": {"file_name": "none.jsonl"}}, "none.jsonl is not there"),
    ("x.mix.json", {"d": {"file_name": "media"}}, "has no data file in it"),
    (
        "x.mix.json",
        {"d": {"file_name": 5}},
        "'d': Expected `str | array`, got `int` - at `file_name`",
    ),
    ("x.mix.json", {"d": {"file_name": "a", "colums": {}}}, "unknown field `colums`"),
    ("x.mix.json", {"d": {"file_name": "a", "columns": {"msgs": "x"}}}, "no column 'msgs'"),
    ("x.mix.json", {"d": {"file_name": "a", "tags": {"user": "x"}}}, "no tag 'user'"),
    ("x.mix.json", {"d": {"file_name": "a", "sample_ratio": -1}}, "sample_ratio is -1"),
    (
        "x.mix.json",
        {"d": {"file_name": "a", "sample_ratio": "all"}},
        "Expected `float`, got `str` - at `sample_ratio`",
    ),
    ("x.mix.json", {"d": {"file_name": "a", "media_dir": 5}}, "got `int` - at `media_dir`"),
    ("x.mix.json", {"d": {"file_name": "a", "columns": {"kto_tag": "x"}}}, "no column 'kto_tag'"),
    ("x.mix.json", {"d": {"file_name": "a", "num_samples": 5}}, "unknown field `num_samples`"),
    ("x.mix.json", {"d": {"file_name": "a", "formatting": "xml"}}, "Invalid enum value 'xml'"),
    ("x.mix.json", {"d": {"file_name": "nowhere://b/x.jsonl"}}, "Protocol not known"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_mixes_that_cannot_be_understood(folder: Path, name: str, value: Any, words: str) -> None:
    path = mix(folder / name, value)
    with pytest.raises(SourceError) as caught:
        find_shards([str(path)])
    assert words in str(caught.value)
    assert name in str(caught.value) or "Protocol" in words


SAID_TWICE = {
    "x.yaml": ("a: {file_name: a/data.jsonl}\nb: {file_name: b/data.jsonl}\na: {file_name: b/data.json}", 'line 3, column 1: found duplicate key "a"'),
    "x.mix.json": ('{"a": {"file_name": "a/data.jsonl"},\n"a": {"file_name": "b/data.jsonl"}}', "the key 'a' stands twice in one object"),
    "mix-columns.json": ('{"a": {"file_name": "a/data.jsonl", "columns": {"messages": "x", "messages": "y"}}}', "the key 'messages' stands twice in one object"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID_TWICE)
def test_a_mix_that_names_a_data_set_twice_loses_none(folder: Path, name: str) -> None:
    text, words = SAID_TWICE[name]
    (folder / name).write_text(text)
    with pytest.raises(SourceError) as caught:
        find_shards([str(folder / name)])
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_what_yaml_merges_is_not_said_twice(folder: Path) -> None:
    merged = "_base: &base {sample_ratio: 2}\nmore: &more {<<: *base, file_name: a/data.jsonl}\nb: {<<: *more, file_name: b/data.jsonl}"
    (folder / "x.yaml").write_text(merged)
    assert [shard.source for shard in find_shards(["mix/x.yaml"])] == ["more", "b"]


def test_files_that_are_no_mixes(folder: Path) -> None:
    (folder / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(SourceError, match=r"bad\.yaml is no valid mix"):
        find_shards([str(folder / "bad.yaml")])
    (folder / "tag.yaml").write_text("!!python/object/apply:os.getcwd []\n")
    with pytest.raises(SourceError, match=r"tag\.yaml is no valid mix"):
        find_shards([str(folder / "tag.yaml")])
    (folder / "config.json").write_text('{\n "a": {"b": 1}\n}\n')
    with pytest.raises(SourceError, match="holds one object that is no record"):
        find_shards([str(folder / "config.json")])
    mix(folder / "outer.mix.json", {"d": {"file_name": "inner.meta.json"}})
    mix(folder / "inner.meta.json", {"d": {"file_name": "a/data.jsonl"}})
    with pytest.raises(SourceError, match="is a mix itself"):
        find_shards([str(folder / "outer.mix.json")])


def test_a_folder_is_searched_for_data_and_not_for_mixes(folder: Path) -> None:
    mix(folder / "meta.json", META)
    mix(folder / "train.yaml", {"a": {"file_name": "a/data.jsonl"}})
    (folder / "config.json").write_text('{\n "a": {"b": 1}\n}\n')
    (folder / "notes.txt").write_text("x")
    for kind in ("csv", "tsv", "parquet", "jsonl.zst", "json.gz"):
        (folder / "c").mkdir(exist_ok=True)
        write(folder / "c", kind, chats(2))
    shards = find_shards(["mix"])
    assert [(shard.uri, shard.source, shard.container) for shard in shards] == [
        ("mix/a/data.json", "a/data", "json"),
        ("mix/a/data.jsonl", "a/data", "jsonl"),
        ("mix/b/data.json", "b/data", "json"),
        ("mix/b/data.jsonl", "b/data", "jsonl"),
        ("mix/c/data.csv", "c/data", "csv"),
        ("mix/c/data.json.gz", "c/data", "json.gz"),
        ("mix/c/data.jsonl.zst", "c/data", "jsonl.zst"),
        ("mix/c/data.parquet", "c/data", "parquet"),
        ("mix/c/data.tsv", "c/data", "tsv"),
    ]


def test_what_the_options_state_is_for_what_a_mix_does_not(folder: Path) -> None:
    own = {"file_name": "b/data.jsonl", "tags": {"user_tag": "U"}, "media_dir": "media"}
    path = mix(folder / "meta.json", {"own": own, "none": {"file_name": "a/data.json"}})
    shards = find_shards([f"{path}#none", "mix/a/data.jsonl"], Layout({"messages": "chat"}))
    assert [shard.layout for shard in shards] == [Layout({"messages": "chat"})] * 2
    (first,) = find_shards([f"{path}#own"], Layout({"messages": "chat"}))
    assert (first.layout.columns, first.layout.tags) == ({"messages": "chat"}, {"user_tag": "U"})
    assert Path(str(first.layout.media_root)).samefile(folder / "media")
    (own, _) = find_shards([path], Layout(tags={"user_tag": "V"}))
    assert own.layout.tags == {"user_tag": "U"}
