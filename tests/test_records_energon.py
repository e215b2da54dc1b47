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
from hypothesis import given
from hypothesis import strategies as st
from record_files import tar_of

from packidx import estimate_lengths
from packidx.errors import SourceError
from packidx.records.energon import expand_braces
from packidx.records.expand import expand_sources

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
        shards = expand_sources([source])
        assert {shard.container for shard in shards} == {"tar"}
        return [(os.path.relpath(shard.path, folder)[-6:-4], shard.source) for shard in shards]

    assert found(str(folder)) == found(f"{folder}#train") == [("09", "set"), ("11", "set")]
    assert found(f"{folder}#val") == [("03", "set/val"), ("02", "set/val")]
    assert [name for name, _ in found(f"{folder}#train,val")] == ["09", "11", "03", "02"]
    assert found(f"mine={folder}#val") == [("03", "mine"), ("02", "mine")]
    assert found(str(tmp_path)) == [("09", "set"), ("11", "set")]  # below another folder
    with pytest.raises(SourceError, match="has no split 'test', there are: train, val"):
        expand_sources([f"{folder}#test"])
    summary = estimate_lengths(f"{folder}#train,val", tmp_path / "out", workers=1)
    assert (summary.num_samples, summary.num_rejected) == (4, 0)


def test_prepared_folders_without_splits_have_all_in_their_order(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set", NAMES, None)
    found = [os.path.relpath(shard.path, folder) for shard in expand_sources([str(folder)])]
    assert found == NAMES
    below = [os.path.relpath(shard.path, folder) for shard in expand_sources([str(tmp_path)])]
    assert below == NAMES


BAD_FOLDERS: dict[str, tuple[Any, Any, str]] = {
    "a shard not listed": (NAMES[1:], {"split_parts": {"train": NAMES}}, "has 'shards/s-009.tar', which"),
    "single samples": (NAMES, {"exclude": [NAMES[0] + "/3"], "split_parts": {"train": NAMES}}, "excludes single samples"),
    "no list": (NAMES, {"split_parts": {"train": "x"}}, "where a list of shards must be"),
    "no parts": (NAMES, ["x"], "has no split 'train', there are: none"),
    "outside": (["../x.tar"], None, "which is no file of its folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_prepared_folders_that_make_no_sense(tmp_path: Path, name: str) -> None:
    names, splits, words = BAD_FOLDERS[name]
    folder = prepared(tmp_path / "set", names, splits)
    with pytest.raises(SourceError, match=words):
        expand_sources([str(folder)])
    (folder / ".nv-meta" / ".info.json").unlink()
    with pytest.raises(SourceError, match=r"has no \.info\.json: run `energon prepare`"):
        expand_sources([str(folder)])
    (folder / ".nv-meta" / ".info.json").write_text("{")
    with pytest.raises(SourceError, match="cannot be understood"):
        expand_sources([str(folder)])


@given(st.integers(0, 120), st.integers(0, 120), st.booleans())
def test_braces_are_expanded_as_the_braceexpand_package_does(a: int, b: int, pad: bool) -> None:
    for pattern in (
        f"s-{{{a:03d}..{b:03d}}}.tar" if pad else f"s-{{{a}..{b}}}.tar",
        f"{{x,y}}/{{{a}..{b}}}{{p,q,}}.tar",
        f"{{{a}..{b:04d}}}",
        "plain.tar",
    ):
        assert list(expand_braces(pattern)) == list(braceexpand.braceexpand(pattern))
