"""Folders: several splits are refused with the globs to type, and nothing is left out in silence."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packidx.errors import SourceError
from packidx.records.sources.find_shards import find_shards


def folder_of(place: Path, *names: str) -> str:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text('{"text": "Once upon a time."}\n' * 2)
    return str(place)


def names_in(source: str) -> list[str]:
    return [Path(shard.path).name for shard in find_shards([source])]


SEVERAL = {
    "data/train-00000-of-00002.parquet data/test-00000-of-00001.parquet": ("data/train*.parquet", "data/test*.parquet"),
    "train.jsonl dev.jsonl x.jsonl": ("train*.jsonl", "dev*.jsonl"),
    "training/x/a.jsonl valid/b.jsonl": ("training", "valid"),
    "my_train_set.json eval_math.jsonl.gz": ("my_train*.json", "eval*.jsonl.gz"),
    "Train/a.jsonl Validation-1.csv testing.csv": ("Train", "Validation*.csv", "testing*.csv"),
    "a/train2014.jsonl a/val2014.jsonl": ("a/train*.jsonl", "a/val*.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("names", SEVERAL)
def test_several_splits_are_refused_with_the_globs_to_type(tmp_path: Path, names: str) -> None:
    given = names.split()
    folder = folder_of(tmp_path / "set", *given)
    with pytest.raises(SourceError, match="has files of several splits: name those") as caught:
        find_shards([folder])
    for glob, name in zip(SEVERAL[names], given, strict=False):
        assert f"{folder}/{glob}" in str(caught.value)
        if not name.endswith((".parquet", ".gz")):  # which these are not
            assert names_in(f"{folder}/{glob}") == [Path(name).name]


@pytest.mark.parametrize(
    "names",
    [
        "train.jsonl training.jsonl x.jsonl",
        "test.jsonl x.jsonl",
        "train.jsonl contest.jsonl latest/a.jsonl device.jsonl testmini.jsonl",
        "trainer.jsonl dev.jsonl retrain.jsonl",
        "a/b.jsonl evaluate.jsonl",
    ],
)
def test_all_of_a_folder_of_one_split_is_read(tmp_path: Path, names: str) -> None:
    given = names.split()
    assert len(names_in(folder_of(tmp_path / "set", *given))) == len(given)


def test_a_split_of_a_folder_that_energon_has_not_prepared_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "set", "train.jsonl")
    with pytest.raises(SourceError, match="no split 'train': name its files"):
        find_shards([f"{folder}#train"])


def test_a_mix_is_one_by_its_name(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.jsonl", "b.jsonl")
    value = {name: {"file_name": f"{name}.jsonl"} for name in "ab"}
    named = ["mix.json", "mix-1.json", "my.mix.json", "meta.json", "meta_train.json", "x_meta.json"]
    for name in [*named, "dataset_info.json", "my_dataset_info.json"]:
        (tmp_path / name).write_text(json.dumps(value))
        assert len(find_shards([str(tmp_path / name)])) == 2, name
    for name in ["x.json", "metadata.json", "remix.json", "mixed.json", "info.json"]:
        (tmp_path / name).write_text(json.dumps(value))
        with pytest.raises(SourceError, match=r"holds one object.* a mix of data sets is named"):
            find_shards([str(tmp_path / name)])


def test_data_in_forms_that_are_not_read_is_warned_of(tmp_path: Path) -> None:
    names = [f"s.{end}" for end in ("tar.gz", "tgz", "tar.zst", "tar.lz4", "tbz2", "txz")]
    names += [
        f"a.{end}" for end in ("jsonl.lz4", "csv.lz4", "parquet.gz", "txt.gz", "JSONL", "TAR")
    ]
    names += ["sub/a.arrow.zst", "a.zip", "a.7z", "a.rar", "a.Zip", "a.tfrecord"]
    folder, warnings = folder_of(tmp_path / "set", "a.jsonl", *names), list[str]()
    for _ in range(2):
        (file,) = find_shards([folder], warnings=warnings)
    assert file.path == f"{folder}/a.jsonl"
    named = ", ".join(map(repr, sorted(names)[:3]))
    assert warnings == [
        f"{len(names)} file(s) of {folder} not read, in a form that packidx does not read (unpack "
        f"them, or move them out of the folder): {named} and {len(names) - 3} more"
    ]
    with pytest.raises(SourceError, match="1 file.* not read, in a form"):
        find_shards([folder_of(tmp_path / "other", "a.zip")])


def test_what_lies_beside_data_on_purpose_is_passed_over(tmp_path: Path) -> None:
    beside = ["README", "README.md", "LICENSE.txt", "a.jpg", "a.png", "a.mp4", "a.idx", "a.tar.idx"]
    beside += [".hidden.tar.gz", ".cache/a.zip", "mix.yaml", "notes.pdf"]
    folder, warnings = folder_of(tmp_path / "set", "a.jsonl", *beside), list[str]()
    for name in ("info.json", "meta.json"):  # a configuration and a mix
        (tmp_path / "set" / name).write_text('{\n"a": {"file_name": "a.tar"}\n}')
    assert len(find_shards([folder], warnings=warnings)) == 1
    assert warnings == []
