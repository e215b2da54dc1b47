"""From files of every kind through lengths and index back to the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import pytest
from msgspec.structs import replace
from PIL import Image
from record_files import tar_of, write

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import ChangedSource, FormatError, MismatchError, PackidxError, SourceError
from packidx.format.manifest import Layout
from packidx.index import Index
from packidx.records.containers.registry import KINDS
from packidx.records.dialects.parse import parse
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


def test_every_sample_is_read_back(index: Index) -> None:
    fetcher = Fetcher(index)
    seen = set()
    for number in range(index.num_packs):
        for sample in index.pack(number).samples:
            parsed = parse(fetcher.read(sample))
            kind, _, row = str(sample.key).partition("-")
            assert sample.source == f"set {kind}"
            texts = [part for turn in parsed.turns for part in turn.parts if isinstance(part, str)]
            assert texts == [f"What, {row}?", f"A {kind} of {row}."]
            (medium,) = parsed.media
            assert (medium.height, medium.width) == (20, 30 + int(row) % 3)
            addressed = kind in ("jsonl", "tar")
            assert (sample.offset is not None) == addressed
            seen.add(sample.key)
    assert len(seen) == COUNT * len(KINDS)
    assert index.manifest["result"]["num_dropped"] == 0


def test_manifests_that_cannot_be_followed(index: Index) -> None:
    sample = index.pack(0).samples[0]
    known = index.snapshot
    layout = Layout(columns={"future": "a"})
    sources = tuple(replace(source, layout=layout) for source in known.sources)
    index.snapshot = replace(known, sources=sources)
    with pytest.raises(FormatError, match=r"layout of source .* newer packidx"):
        Fetcher(index)
    container: Any = "zip"
    shards = tuple(replace(shard, container=container) for shard in known.shards)
    index.snapshot = replace(known, shards=shards)
    with pytest.raises(SourceError, match="no container of kind 'zip'"):
        Fetcher(index).read(sample)


def test_a_manifest_without_container_means_json_lines(index: Index) -> None:
    sample = next(
        sample
        for number in range(index.num_packs)
        for sample in index.pack(number).samples
        if sample.source == "set jsonl"
    )
    assert "container" not in index.manifest["shards"][sample.shard]
    assert parse(Fetcher(index).read(sample)).media


def test_moved_and_changed_data(index: Index, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = open_index("index", roots={"data": str(tmp_path / "moved")})
    samples = [sample for number in range(index.num_packs) for sample in index.pack(number).samples]
    fetcher = Fetcher(moved)
    for sample in samples[::37]:
        assert parse(fetcher.read(sample)).media
    with pytest.raises(PackidxError, match="--root OLD=NEW"):
        Fetcher(open_index("index")).read(samples[0])
    shard = moved.resolve(moved.manifest["shards"][samples[0].shard]["uri"])
    with open(shard, "ab") as file:
        file.write(b"more")
    with pytest.raises(MismatchError, match="when it was planned"):
        Fetcher(moved).read(samples[0])


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
