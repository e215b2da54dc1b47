"""Shards that are not those that were counted: what the reader, exports and `verify` see of it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from packidx import open_index, plan_packs
from packidx.errors import ChangedSource, SourceError
from packidx.estimate import estimate_lengths
from packidx.export.energon import export_energon
from packidx.export.wds import export_wds
from packidx.index import Index
from packidx.inspect.verify import verify_index
from packidx.torch import PackedDataset


def encode(record: dict[str, Any]) -> dict[str, Any]:
    """A token for each letter of the answer."""
    return {"input_ids": torch.tensor([ord(letter) for letter in record["messages"][1]["content"]])}


def lines(words: list[str]) -> bytes:
    turns = ([{"role": "user", "content": "?"}, {"role": "assistant", "content": w}] for w in words)
    return b"".join(json.dumps({"messages": one}).encode() + b"\n" for one in turns)


WORDS = [f"{number:04d}" for number in range(40)]
OTHER = ["abcd", *WORDS[1:]]


def planned(folder: Path, source: Path | str, **options: Any) -> Index:
    estimate_lengths(str(source), folder / "lengths", encode=encode, workers=1)
    plan_packs(folder / "lengths", folder / "index", capacity=options.pop("capacity", 16))
    return open_index(folder / "index", **options)


def other_bytes(path: Path, content: bytes) -> None:
    """Other bytes, as many as before, at another time."""
    assert path.stat().st_size == len(content)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


def test_a_copy_is_read_and_other_bytes_are_proved(tmp_path: Path) -> None:
    """The reader compares sizes; `verify` compares contents."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(WORDS))
    index = planned(tmp_path, path)
    other_bytes(path, lines(WORDS))
    dataset = PackedDataset(index, encode)
    assert sum(len(dataset[number].samples) for number in range(len(dataset))) == len(WORDS)
    assert dataset.events.counts == {} and all(check.ok for check in verify_index(index))
    other_bytes(path, lines(OTHER))
    checks = {check.name: check for check in verify_index(index)}
    assert not checks["shards"].ok and "when it was counted" in checks["shards"].detail
    path.write_bytes(lines(WORDS[1:]))
    with pytest.raises(ChangedSource, match="when it was planned"):
        PackedDataset(index, encode)[0]


@pytest.mark.parametrize("export", [export_wds, export_energon])
def test_an_export_copies_nothing_of_another_size(
    tmp_path: Path, export: Callable[[Index, Path], Any]
) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, WORDS)
    index = planned(tmp_path, path)
    write_tar(path, WORDS[:20])
    with pytest.raises(ChangedSource, match="restore it"):
        export(index, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_tar(path, WORDS)
    export(index, tmp_path / "out")


def write_tar(path: Path, words: list[str]) -> None:
    with tarfile.open(path, "w") as tar:
        for number, line in enumerate(lines(words).splitlines()):
            member = tarfile.TarInfo(f"{number:03d}.json")
            member.size = len(line)
            tar.addfile(member, io.BytesIO(line))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(lines(["more"]))


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(lines(["abcd", *WORDS[1:30]]))
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut, "bytes before and"),
        (_grown, "bytes before and"),
        (_replaced, "bytes before and"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_shard_that_changes_while_it_is_counted_ends_the_run(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    """Whatever was counted of it: no table is made of two files."""
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(lines(WORDS))
    estimate_lengths(str(shard), tmp_path / "lengths", encode=encode, workers=1)
    before = (tmp_path / "lengths/manifest.json").read_bytes()
    shard.write_bytes(lines(WORDS[:30]))
    seen = 0

    def encode_and_change(record: dict[str, Any]) -> dict[str, Any]:
        nonlocal seen
        seen += 1
        if seen == 20:
            change(shard)
        return encode(record)

    with pytest.raises(SourceError, match=words):
        estimate_lengths(str(shard), tmp_path / "lengths", encode=encode_and_change, workers=1)
    assert seen >= 20
    assert (tmp_path / "lengths/manifest.json").read_bytes() == before
