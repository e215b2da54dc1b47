"""`packidx export wds`: what is in the tars, in which order, and that there is all of it or nothing."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clips import write_clip
from object_store import URL, Store
from PIL import Image
from record_files import contents, picture, tar_of
from webdataset import tariterators

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import ChangedSource, OptionError, SourceError
from packidx.export import wds as api
from packidx.export.packed_record import media_extension, messages_of, pairs_of
from packidx.export.wds import export_wds
from packidx.index import Index
from packidx.io import storage
from packidx.records.read import parse_record

ASK, SAY = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}

# record -> its questions and answers
TURNS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "a pair": ({"messages": [ASK, SAY]}, [("Why?", "So.")]),
    "pairs": ({"messages": [ASK, SAY, ASK, SAY]}, [("Why?", "So.")] * 2),
    "a placeholder": ({"messages": [{"role": "user", "content": "<image> what\n"}, SAY], "images": ["a"]}, [("<image> what\n", "So.")]),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "image", "image": "a"}, {"type": "text", "text": " what"}, {"type": "video", "video": "b"}]}, SAY]}, [("<image> what<video>", "So.")]),
    "sizes are hints": ({"messages": [{"role": "user", "content": [{"type": "image", "image": "a", "height": 3, "width": 4}]}, SAY]}, [("<image>", "So.")]),
    "nothing asked": ({"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "So."}]}, [("", "So.")]),
    "null": ({"messages": [{**ASK, "name": None}, SAY]}, [("Why?", "So.")]),
    "name": ({"messages": [{**ASK, "name": "Ann"}, SAY]}, [("Why?", "So.")]),
    "system": ({"system": "Be kind.", "messages": [ASK, SAY]}, [("Be kind.\nWhy?", "So.")]),
    "system turn": ({"messages": [{"role": "system", "content": "Be kind."}, ASK, SAY]}, [("Be kind.\nWhy?", "So.")]),
    "two answers": ({"messages": [ASK, SAY, SAY]}, [("Why?", "So."), ("", "So.")]),
    "two questions": ({"messages": [ASK, ASK, SAY]}, [("Why?\nWhy?", "So.")]),
    "question last": ({"messages": [ASK, SAY, ASK]}, [("Why?", "So."), ("Why?", "")]),
    "answer first": ({"messages": [SAY, ASK, SAY, ASK]}, [("", "So."), ("Why?", "So."), ("Why?", "")]),
    "not trained on": ({"messages": [ASK, {**SAY, "train": False}]}, [("Why?", "So.")]),
    "tools": ({"messages": [ASK, SAY], "tools": [{"name": "f"}]}, [("Why?", "So.")]),
    "a call": ({"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "42", "name": "f"}, SAY]}, [("Why?", '[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]'), ("42", "So.")]),
    "texts that meet": ({"messages": [{"role": "user", "content": ["a", "b"]}, SAY]}, [("ab", "So.")]),
    "frames": ({"messages": [{"role": "user", "content": "<video>"}, SAY], "videos": [["a", "b"]]}, [("<video>", "So.")]),
    "chosen frames": ({"messages": [{"role": "user", "content": "<video>"}, SAY], "videos": [{"path": "a", "fps": 2.0, "frame_indices": [0, 5]}]}, [("<video>", "So.")]),
    "tokens": ({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, []),
    "tokens alone": ({"input_ids": [1, 2, 3]}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", TURNS)
def test_no_turn_is_lost(case: str) -> None:
    record, pairs = TURNS[case]
    conversation = parse_record(record)
    assert pairs_of(conversation) == pairs
    kept = messages_of(conversation, [medium.ref for medium in conversation.media])
    assert parse_record(json.loads(json.dumps(kept))) == conversation


def test_an_extension_is_the_content_s(tmp_path: Path) -> None:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        assert media_extension(picture(1, kind), "x.mp4") == {"JPEG": "jpg"}.get(kind, kind.lower())
    for name in ("x.mp4", "x.mkv", "x.webm", "x.avi", "x.ts"):
        codec = "libvpx" if name == "x.webm" else "mpeg4"
        data = write_clip(tmp_path / name, frames=3, codec=codec, fps="25").read_bytes()
        assert media_extension(data) == ("bin" if name == "x.ts" else name[2:])
        assert media_extension(data, name.upper()) == name[2:]


def talk(number: int, images: int = 1) -> list[dict[str, str]]:
    asked = "<image>" * images + f"What is {number}? " + "And so on. " * (number % 5)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": f"{number}."}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[bytes]]]:
    """A folder of sources that have their media in every way, and the media of each key."""
    folder = tmp_path_factory.mktemp("data")
    media: dict[str, list[bytes]] = {}
    records: list[dict[str, Any]] = []
    for number in range(40):  # files; every other one has a name that says nothing
        name = f"{number}.png" if number % 2 else f"picture-{number}"
        (folder / name).write_bytes(picture(number))
        media[f"file{number}"] = [picture(number)]
        records.append({"id": f"file{number}", "messages": talk(number), "images": [name]})
    for case, (record, _) in TURNS.items():
        if not any(key in json.dumps(record) for key in ('"a"', '"b"')):
            records.append({"id": case, **record})
            media[case] = []
    for number in range(5):  # in the record
        data = picture(100 + number, "JPEG")
        uri = "data:image/jpeg;base64," + base64.b64encode(data).decode()
        media[f"uri{number}"] = [data, data]
        content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "image"}]
        turns = [{"role": "user", "content": content}, SAY]
        inside = [{"bytes": base64.b64encode(data).decode()}]
        records.append({"id": f"uri{number}", "messages": turns, "images": inside})
    with lmdb.open(str(folder / "db.lmdb")) as database, database.begin(write=True) as put:
        put.put(b"k", picture(200))
    media["lmdb"] = [picture(200)]
    records.append({"id": "lmdb", "messages": talk(200), "images": ["db.lmdb::k"]})
    clip = write_clip(folder / "clip.mp4", frames=5)
    asked = [{"role": "user", "content": "<video>and<image>?"}, SAY]
    media["video"] = [clip.read_bytes(), picture(3)]
    videos = [{"path": "clip.mp4", "fps": 10}]
    records.append({"id": "video", "messages": asked, "images": ["3.png"], "videos": videos})
    media["frames"] = [picture(7), picture(7), picture(14), picture(3)]
    frames = [{"frames": ["7.png", "7.png", "picture-14"]}]
    records.append({"id": "frames", "messages": asked, "images": ["3.png"], "videos": frames})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "lines.jsonl").write_text(lines)
    cells = []
    for number in range(300, 320):  # cells of a table
        cell = {"bytes": picture(number), "path": "x.png"}
        cells.append({"id": f"cell{number}", "messages": talk(number), "images": [cell]})
        media[f"cell{number}"] = [picture(number)]
    pq.write_table(pa.Table.from_pylist(cells), folder / "table.parquet", row_group_size=7)
    members: list[tuple[str, bytes]] = []
    for number in range(400, 420):  # members, whose names lie about their kind
        text = json.dumps({"messages": talk(number, 2)}).encode()
        key, pictures = f"tar{number}", [picture(number), picture(number, "JPEG")]
        members += [(f"{key}.{at}.jpg", data) for at, data in enumerate(pictures)]
        members += [(f"{key}.json", text)]
        media[key] = pictures
    (folder / "shard.tar").write_bytes(tar_of(members))
    return folder, media


def plan(tmp_path: Path, *sources: Path, capacity: int = 600, **options: Any) -> Index:
    estimate_lengths([str(source) for source in sources], tmp_path / "lengths", workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=capacity, **options)
    return open_index(tmp_path / "index")


@pytest.fixture(scope="module")
def index(
    data: tuple[Path, dict[str, list[bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> Index:
    folder = data[0]
    files = [folder / name for name in ("lines.jsonl", "table.parquet", "shard.tar")]
    index = plan(tmp_path_factory.mktemp("plan"), *files, capacity=8000, seed=3)
    assert index.num_samples == len(data[1]) and index.num_packs > 5
    return index


@pytest.fixture(scope="module")
def export(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "tars"
    summary = export_wds(index, folder, max_size="50KB", workers=1)
    assert (summary.num_packs, summary.num_samples) == (index.num_packs, index.num_samples)
    assert summary.num_shards > 2
    return folder


def packs_of(folder: Path) -> list[dict[str, Any]]:
    """All samples as the package webdataset reads them."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.tar")):
        with open(path, "rb") as file:
            files = tariterators.tar_file_iterator(file)
            found += tariterators.group_by_keys({**one, "__url__": ""} for one in files)
    return [{**sample, "json": json.loads(sample["json"])} for sample in found]


def flat(names: Any) -> Iterator[str]:
    for name in names:
        yield from [name] if isinstance(name, str) else flat(name)


def test_every_sample_in_its_pack_with_its_media(
    export: Path, index: Index, data: tuple[Path, dict[str, list[bytes]]]
) -> None:
    media = dict(data[1])
    packs = packs_of(export)
    assert [pack["__key__"] for pack in packs] == [f"pack{n:06d}" for n in range(index.num_packs)]
    for number, pack in enumerate(packs):
        planned, meta = index.pack(number), pack["json"]["_meta"]
        assert meta["pack_id"] == number
        assert meta["sample_ids"] == [sample.sample_id for sample in planned.samples]
        assert meta["keys"] == [sample.key for sample in planned.samples]
        assert meta["sources"] == [sample.source for sample in planned.samples]
        assert meta["token_lens"] == [sample.length for sample in planned.samples]
        assert meta["total_token_len"] == planned.stats["length"]
        names = pack["json"]["media_files"]
        assert len(names) == len(planned.samples) == len(pack["json"]["texts"]["prompts"])
        for at, (key, own) in enumerate(zip(meta["keys"], names, strict=True)):
            found = list(flat(own))
            assert [pack[name] for name in found] == media.pop(key)
            assert [medium.ref for medium in parse_record(meta["records"][at]).media] == own
            assert all(name.startswith(f"s{at:03d}_") for name in found)
        inside = {name for name in pack if not name.startswith("__")}
        assert inside == {"json", *flat(names)}  # and nothing else
        for name in inside - {"json"}:
            if ".mp4" not in name:
                kind = Image.open(io.BytesIO(pack[name])).format
                assert {"PNG": "png", "JPEG": "jpg"}[str(kind)] == name[-3:]
    assert not media


def test_the_bytes_depend_on_the_plan_alone(export: Path, index: Index, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_PACKS_PER_PROCESS", 1)
        export_wds(index, tmp_path / "again", max_size="50KB", workers=2)
    assert contents(tmp_path / "again") == contents(export)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """24 packs of one sample with two pictures each."""
    folder = tmp_path_factory.mktemp("many")
    lines = []
    for number in range(24):
        (folder / f"{number}.png").write_bytes(picture(number) + bytes(3000))
        record = {"messages": talk(5, 2), "images": [f"{number}.png", "0.png"], "id": f"k{number}"}
        lines.append(json.dumps(record) + "\n")
    (folder / "lines.jsonl").write_text("".join(lines))
    index = plan(folder, folder / "lines.jsonl", capacity=10_000, max_images=2)
    assert index.num_packs == 24
    return index


def test_kinds_stay_apart_where_the_plan_keeps_them_apart(
    data: tuple[Path, dict[str, list[bytes]]], tmp_path: Path
) -> None:
    index = plan(tmp_path, data[0] / "lines.jsonl", capacity=8000, group_by="media_type")
    export_wds(index, tmp_path / "tars")
    groups = index.packs(["group"]).column(0).to_pylist()
    found = [pack["json"]["media_type"] for pack in packs_of(tmp_path / "tars")]
    assert found == groups and set(found) == {"text", "image", "image+video"}


def test_packs_are_not_read_as_records(export: Path, tmp_path: Path) -> None:
    summary = estimate_lengths(str(export / "*.tar"), tmp_path / "lengths", workers=1)
    assert summary.rejected == {"bad_record": summary.num_samples}


def _other(folder: Path, name: str, **options: Any) -> None:
    if name.endswith(".png"):
        size = {"width": 150, "height": 90, **options}
        Image.new("RGB", (size["width"], size["height"])).save(folder / name)
    else:
        write_clip(folder / name, fps="25", **{"frames": 4, **options})


# what a record refers to -> how its files are written, once before and once after planning
CHANGED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "wider": ({"images": ["a.png"]}, "a.png", {"width": 300}),
    "turned": ({"images": ["a.png"]}, "a.png", {"width": 90, "height": 150}),
    "stated": ({"images": [{"path": "a.png", "width": 150, "height": 90}]}, "a.png", {"width": 300}),
    "frames": ({"videos": ["a.mp4"]}, "a.mp4", {"frames": 8}),
    "equal": ({"images": ["b.png", "a.png"], "videos": ["a.mp4"]}, "", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_media_that_have_changed_are_not_exported(
    case: str, processors: Path, tmp_path: Path
) -> None:
    record, name, change = CHANGED[case]
    for other in ("a.png", "b.png", "a.mp4"):
        _other(tmp_path, other)
    (tmp_path / "x.jsonl").write_text(json.dumps({"messages": [ASK, SAY], **record}))
    processor = processors / "qwen2.5-vl"
    estimate_lengths(
        str(tmp_path / "x.jsonl"), tmp_path / "lengths", processor=processor, workers=1
    )
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=4000)
    if not name:
        assert export_wds(tmp_path / "index", tmp_path / "out").warnings == []
        return
    _other(tmp_path, name, **change)
    with pytest.raises(ChangedSource, match="is not the one that was counted"):
        export_wds(tmp_path / "index", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_into_a_store_has_the_bytes_of_a_local_one(
    many: Index, store: Store, tmp_path: Path
) -> None:
    for output in (str(tmp_path / "out"), f"{URL}/out"):
        export_wds(many, output, max_size="100KB")
    names = storage.files_below(f"{URL}/out")
    assert {name: storage.read(f"{URL}/out/{name}") for name in names} == contents(tmp_path / "out")


def test_a_sample_that_cannot_be_read_stops_it(many: Index, tmp_path: Path) -> None:
    folder = Path(many.path).parent
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("index", "lengths"))
    key = str(many.pack(13).samples[0].key)
    (moved / f"{key[1:]}.png").unlink()
    with pytest.raises(SourceError) as failed:
        export_wds(many, tmp_path / "out", roots={str(folder): str(moved)})
    said = str(failed.value)
    assert said.startswith(f"pack 13, sample {key!r} of shard {folder}/lines.jsonl: missing_media")
    assert os.listdir(tmp_path) == ["moved"]


@pytest.mark.parametrize("on_long", ["split", "truncate"])
def test_plans_of_what_is_no_record_are_refused(on_long: str, tmp_path: Path) -> None:
    record = {"id": "long", "messages": [ASK, {"role": "assistant", "content": "word " * 100}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    index = plan(tmp_path, tmp_path / "a.jsonl", capacity=40, on_long=on_long)
    with pytest.raises(OptionError, match="cuts samples"):
        export_wds(index, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_does_not_replace_what_is_exported(many: Index, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps({"messages": [ASK, SAY]}))
    index = plan(tmp_path, tmp_path / "data")
    for output in (tmp_path / "data", tmp_path / "index", tmp_path / "index" / "x"):
        with pytest.raises(OptionError, match="name another folder|name a folder outside"):
            export_wds(index, output)
