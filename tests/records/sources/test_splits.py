"""Of a folder with splits the train split is taken, and the others are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from packidx_cli.main import cli

from packidx.errors import SourceError
from packidx.records.sources.find_shards import find_shards
from packidx.records.sources.folders import Told, split_in

T, V, E = "train", "validation", "test"
NAMES = {
    "data/train-00000-of-00002.parquet": T, "data/test-00000-of-00001.parquet": E,
    "train.jsonl": T, "my_train_set.jsonl": T, "Train/a.jsonl": T, "training/x/a.jsonl": T,
    "dev.jsonl": V, "val2014.json": V, "valid/a.jsonl": V, "Validation-1.csv": V,
    "eval_math.jsonl": E, "testing.csv": E, "test_sft-00000-of-00001.parquet": E,
    "contest.jsonl": "", "trainer.jsonl": "", "latest/a.jsonl": "", "device.jsonl": "",
    "testmini.parquet": "", "evaluate.jsonl": "", "a/b.jsonl": "", "retrain.jsonl": "",
}  # fmt: skip


def folder_of(place: Path, *names: str) -> str:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text('{"text": "Once upon a time."}\n')
    return str(place)


def names_in(source: str) -> list[str]:
    return [Path(shard.path).name for shard in find_shards([source])]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_path_is_named_for(name: str) -> None:
    assert split_in(name) == NAMES[name]


FOLDERS = {
    "files": (["train.jsonl", "test.jsonl"], ["train.jsonl"], ["test"]),
    "folders": (["train/a.jsonl", "val/b.jsonl", "test/c.jsonl"], ["a.jsonl"], [E, V]),
    "and one of none": (["train.jsonl", "dev.jsonl", "x.jsonl"], ["train.jsonl", "x.jsonl"], [V]),
    "no train": (["test.jsonl", "x.jsonl"], ["test.jsonl", "x.jsonl"], []),
    "no split": (["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_the_train_split_is_taken_and_others_are_told(tmp_path: Path, name: str) -> None:
    given, taken, others = FOLDERS[name]
    besides = Told()
    shards = find_shards([folder_of(tmp_path / "set", *given)], told=besides)
    assert [Path(shard.path).name for shard in shards] == taken
    told = " ".join(besides.not_read(shards)[0])
    assert told.count(" split (") == len(others)
    assert all(f"of its {split} split" in told and f"set#{split}" in told for split in others)


def test_splits_that_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "set", "train.jsonl", "dev.jsonl", "test/a.jsonl", "x.jsonl")
    assert names_in(f"{folder}#validation") == names_in(f"{folder}#dev") == ["dev.jsonl"]
    assert sorted(names_in(f"{folder}#test, train")) == ["a.jsonl", "train.jsonl"]
    with pytest.raises(SourceError, match=r"no split 'held', there are: test, train, validation;"):
        find_shards([f"{folder}#held"])
    alone = folder_of(tmp_path / "alone", "test.jsonl", "dev.jsonl")
    with pytest.raises(SourceError, match=r"no split 'train', there are: test, validation; name"):
        find_shards([alone])
    assert len(find_shards([f"{alone}/*.jsonl"])) == 2  # who names files has said it


def test_splits_of_a_dictionary_have_any_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "set", "train/a.jsonl", "holdout/b.jsonl", "test_sft/c.jsonl")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "holdout"]}')
    assert names_in(folder) == ["a.jsonl"]
    assert names_in(f"{folder}#holdout") == ["b.jsonl"]


def test_a_mix_is_one_by_its_name_or_by_the_users_word(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.jsonl", "b.jsonl")
    value = {name: {"file_name": f"{name}.jsonl"} for name in "ab"}
    named = ["mix.json", "mix-1.json", "my.mix.json", "meta.json", "meta_train.json", "x_meta.json"]
    for name in [*named, "dataset_info.json", "my_dataset_info.json"]:
        (tmp_path / name).write_text(json.dumps(value))
        assert len(find_shards([str(tmp_path / name)])) == 2, name
    others = ["x.json", "metadata.json", "remix.json", "mixed.json", "info.json"]
    for name in others:
        (tmp_path / name).write_text(json.dumps(value))
        with pytest.raises(SourceError, match=f"mix:{tmp_path / name}, or name it mix.json"):
            find_shards([str(tmp_path / name)])
    runner = CliRunner()
    for given, number in (("x.json", 2), ("x.json#b", 1)):
        command = ["estimate", f"mix:{tmp_path / given}", "-o", str(tmp_path / "l")]
        done = runner.invoke(cli, [*command, "--json", "--quiet", "--fresh"])
        assert json.loads(done.stdout)["num_samples"] == number
    command = ["pack", f"mix:{tmp_path / 'x.json'}", "--capacity", "64", "--quiet"]
    assert runner.invoke(cli, [*command, "-o", str(tmp_path / "p")]).exit_code == 0
    assert f"- mix:{tmp_path / 'x.json'}" in (tmp_path / "p" / "recipe.yaml").read_text()
    assert runner.invoke(cli, ["estimate", "-o", "l"]).exit_code == 2  # no source at all
    with pytest.raises(SourceError, match="is not a mix"):
        find_shards([f"mix:{tmp_path / 'a.jsonl'}"])
