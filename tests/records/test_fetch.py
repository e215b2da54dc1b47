"""From files of every kind through lengths and index back to the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import pytest
from PIL import Image
from record_files import tar_of, write

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import ChangedSource
from packidx.index import Index
from packidx.records.containers.registry import KINDS
from packidx.records.fetch import Fetcher

COUNT = 40


def chat(kind: str, number: int) -> dict[str, Any]:
    return {
        "uuid": f"{kind}-{number}",
        "chat": [
            {"who": "U", "text": f"<image>What, {number}?"},
            {"who": "A", "text": f"A {kind} of {number}."},
        ],
        "pics": [f"{number % 3}.png" if number % 2 else f"db.lmdb::{number % 3}"],
    }


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index over one source of each kind, named by a mix whose layout is not the default."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    (data / "media").mkdir(parents=True)
    with lmdb.open(str(data / "media" / "db.lmdb")) as database, database.begin(write=True) as put:
        for number in range(3):
            path = data / "media" / f"{number}.png"
            Image.new("RGB", (30 + number, 20)).save(path)
            put.put(str(number).encode(), path.read_bytes())
    meta = {}
    for kind in KINDS:
        (data / kind).mkdir()
        write(data / kind, kind, [chat(kind, number) for number in range(COUNT)])
        meta[f"set {kind}"] = {
            "file_name": f"{kind}/data.{kind}",
            "columns": {"messages": "chat", "images": "pics", "id": "uuid"},
            "tags": {
                "role_tag": "who",
                "content_tag": "text",
                "user_tag": "U",
                "assistant_tag": "A",
            },
            "media_dir": "media",
        }
    (data / "meta.json").write_text(json.dumps(meta))
    estimate_lengths(["data/meta.json"], "lengths", workers=1)
    plan_packs("lengths", "index", capacity=4096)
    return open_index("index")


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_another_record_in_the_place(tmp_path: Path, kind: str) -> None:
    """A shard written anew with the records of another order: the same size, other keys."""

    def rewrite(order: list[int]) -> None:
        turns = [[{"role": "user", "content": f"Number {n}?"}] for n in order]
        records = [{"id": f"r{n}", "messages": t} for n, t in zip(order, turns, strict=True)]
        lines = [json.dumps(one).encode() for one in records]
        if kind == "tar":
            members = [(f"r{n}.json", line) for n, line in zip(order, lines, strict=True)]
            (tmp_path / "shard.tar").write_bytes(tar_of(members))
        else:
            (tmp_path / "shard.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    rewrite([1, 2, 3])
    estimate_lengths(str(tmp_path / f"shard.{kind}"), tmp_path / "lengths", workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=64)
    opened = open_index(tmp_path / "index")
    samples = {str(one.key): one for one in opened.pack(0).samples}
    assert Fetcher(opened).record(samples["r1"]).record["id"] == "r1"
    rewrite([3, 2, 1])
    fetcher = Fetcher(opened)
    assert fetcher.record(samples["r2"]).record["id"] == "r2"
    (change,) = fetcher.take_changes()
    assert "has as many bytes as were counted, but other ones" in change.text
    with pytest.raises(ChangedSource, match="has the record 'r3' where 'r1' was counted"):
        fetcher.record(samples["r1"])
