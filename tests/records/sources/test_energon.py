"""Folders that Energon prepared: which shards of which split, in which order."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import braceexpand
import pytest
import yaml
from record_files import tar_of

from packidx import estimate_lengths
from packidx.errors import SourceError
from packidx.records.sources.find_shards import find_shards

GOOD = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So."}]}'


def put(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(members))


def prepared(folder: Path, names: Sequence[str], splits: Any, info: str = ".info.json") -> Path:
    for number, name in enumerate(names):
        put(folder / name, [(f"{number}.json", GOOD)])
    put(folder / "stray.tar", [("stray.json", GOOD)])
    meta = folder / ".nv-meta"
    meta.mkdir()
    counts = {"energon_version": "7.4.1", "shard_counts": dict.fromkeys(names, 1)}
    (meta / info).write_text(
        yaml.dump(counts, sort_keys=False) if "y" in info else json.dumps(counts)
    )
    if splits is not None:
        (meta / "split.yaml").write_text(yaml.dump(splits))
    return folder


NAMES = [f"shards/s-{number:03d}.tar" for number in (9, 3, 10, 11, 2)]
SPLITS = {
    "exclude": ["shards/s-{010..010}.tar"],
    "split_parts": {"train": ["shards/s-{009..011}.tar"], "val": ["shards/s-00{3,2}.tar"]},
}


@pytest.mark.parametrize("info", [".info.json", ".info.yaml"])
def test_splits_of_prepared_folders(tmp_path: Path, info: str) -> None:
    folder = prepared(tmp_path / "set", NAMES, SPLITS, info)

    def found(source: str) -> list[tuple[str, str]]:
        shards = find_shards([source])
        assert {shard.container for shard in shards} == {"tar"}
        return [(os.path.relpath(shard.path, folder)[-6:-4], shard.source) for shard in shards]

    assert found(str(folder)) == found(f"{folder}#train") == [("09", "set"), ("11", "set")]
    assert found(f"{folder}#val") == [("03", "set/val"), ("02", "set/val")]
    assert [name for name, _ in found(f"{folder}#train,val")] == ["09", "11", "03", "02"]
    assert found(f"mine={folder}#val") == [("03", "mine"), ("02", "mine")]
    assert found(str(tmp_path)) == [("09", "set"), ("11", "set")]  # below another folder
    with pytest.raises(SourceError, match="has no split 'test', there are: train, val"):
        find_shards([f"{folder}#test"])
    summary = estimate_lengths(f"{folder}#train,val", tmp_path / "out", workers=1)
    assert (summary.num_samples, summary.num_rejected) == (4, 0)


BAD_FOLDERS: dict[str, tuple[Any, Any, str]] = {
    "a shard not listed": (NAMES[1:], {"split_parts": {"train": NAMES}}, "has 'shards/s-009.tar', which"),
    "single samples": (NAMES, {"exclude": [NAMES[0] + "/3"], "split_parts": {"train": NAMES}}, "excludes single samples"),
    "no list": (NAMES, {"split_parts": {"train": [3]}}, "as shards: "),
    "no parts": (NAMES, ["x"], r"split\.yaml has no split_parts"),
    "outside": (["../x.tar"], None, "which is not a file of its folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_prepared_folders_that_make_no_sense(tmp_path: Path, name: str) -> None:
    names, splits, words = BAD_FOLDERS[name]
    folder = prepared(tmp_path / "set", names, splits)
    with pytest.raises(SourceError, match=words):
        find_shards([str(folder)])
    (folder / ".nv-meta" / ".info.json").unlink()
    with pytest.raises(SourceError, match="has no shard_counts: run `energon prepare`"):
        find_shards([str(folder)])
    (folder / ".nv-meta" / ".info.json").write_text("{")
    with pytest.raises(SourceError, match="cannot be understood"):
        find_shards([str(folder)])


@pytest.mark.parametrize(
    "excluded", ["s-{b..c}.tar", "s-{b,{c,x}}.tar", "{s-b,s-c}.tar", "s-{b..d..1}.tar"]
)
def test_tars_that_energon_excludes_are_not_read(tmp_path: Path, excluded: str) -> None:
    names = [f"s-{letter}.tar" for letter in "abcde"]
    kept = [name for name in names if name not in set(braceexpand.braceexpand(excluded))]
    splits = {"exclude": [excluded], "split_parts": {"train": ["s-{a..e}.tar"]}}
    folder = prepared(tmp_path / "set", names, splits)
    assert [os.path.basename(shard.path) for shard in find_shards([str(folder)])] == kept
    assert len(kept) < len(names)


def test_a_split_of_which_all_is_excluded_is_an_error(tmp_path: Path) -> None:
    splits = {"exclude": ["s-{0..1}.tar"], "split_parts": {"train": ["s-0.tar"]}}
    prepared(tmp_path / "set", ["s-0.tar", "s-1.tar"], splits)
    with pytest.raises(
        SourceError, match="the train split of .*set has no shard that is not excluded"
    ):
        find_shards([str(tmp_path)])
