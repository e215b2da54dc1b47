"""Data sets of the Hub: which files of which commit a name stands for, and where they are read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, serving

from packidx.records.sources import hub as hub_names

FIND = """
import json, sys
from packidx.errors import PackidxError
from packidx.records.sources.find_shards import find_shards
for arg in sys.argv[1:]:
    try:
        print(json.dumps([[s.uri, s.source, s.container] for s in find_shards([arg])]))
    except PackidxError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""
DOWNLOAD = """
import sys, huggingface_hub
wanted = sys.argv[2:] or None
huggingface_hub.snapshot_download(sys.argv[1], repo_type="dataset", allow_patterns=wanted)
"""


def parquet(*texts: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts)}), sink)
    return sink.getvalue()


def texts(*said: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in said).encode()


TALKS = {
    ".gitattributes": b"",
    "README.md": b"---\nconfigs:\n- config_name: default\n  data_files:\n"
    b"  - {split: train, path: data/train-*}\n  - {split: test, path: data/test-*}\n---\n",
    "data/train-00000-of-00002.parquet": parquet("a"),
    "data/train-00001-of-00002.parquet": parquet("b"),
    "data/test-00000-of-00001.parquet": parquet("t"),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


def found(hub: Hub, home: Path, *args: str, **environment: str) -> list[Any]:
    """For each argument its shards (uri, source, container), or an error."""
    done = hub.run(home, "-c", FIND, *args, **environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def files(answer: Any) -> list[str]:
    """The file names of what was found."""
    assert isinstance(answer, list), answer
    return [shard[0].rpartition("/")[2] for shard in answer]


@pytest.mark.parametrize(
    ("arg", "name"),
    [
        ("org/name", ("org/name", None, None, (), None)),
        ("org/na.me-2@v1", ("org/na.me-2", "v1", None, (), None)),
        ("org/name@refs/convert/parquet", ("org/name", "refs/convert/parquet", None, (), None)),
        ("org/name@a%2Fb:c d#x, y", ("org/name", "a/b", "c d", ("x", "y"), None)),
        ("hf://datasets/org/name:c#x", ("org/name", None, "c", ("x",), None)),
        ("hf://datasets/org/n@v1/a/*.csv", ("org/n", "v1", None, (), "a/*.csv")),
    ],
)
def test_names(arg: str, name: tuple[Any, ...]) -> None:
    assert hub_names.parse_name(arg) == hub_names.Name(*name)


@pytest.mark.parametrize(
    "arg",
    ["name", "./org/name", "/org/name", "a/b/c", "org/a.jsonl", "org/m.yaml", "org/*", "a=org/name",
     "s3://org/name", "hf://org/name", "org/", "org/name@x/y"],
)  # fmt: skip
def test_what_is_no_name(arg: str) -> None:
    assert hub_names.parse_name(arg) is None


def test_a_split_is_read_at_the_commit_of_a_branch(hub: Hub, tmp_path: Path) -> None:
    first = hub.push("org/talks", TALKS)
    hub.push("org/talks", {"old.jsonl": texts("x")}, "v1")
    folder = f"{tmp_path}/hub/datasets--org--talks/snapshots/{first}"
    train = [[f"{folder}/data/train-0000{i}-of-00002.parquet", "talks", "parquet"] for i in (0, 1)]
    files_of = "hf://datasets/org/talks/data/train-*.parquet"
    answers = found(
        hub, tmp_path, files_of, "org/talks", f"org/talks@{first}#test,train", "own=org/talks@v1"
    )
    assert [shard[0] for shard in answers[0]] == [shard[0] for shard in train]
    assert answers[1] == train
    assert [shard[1] for shard in answers[2]] == ["talks/test", "talks", "talks"]
    assert answers[3][0][1] == "own" and files(answers[3]) == ["old.jsonl"]
    asked = len(hub.requests)
    assert found(hub, tmp_path, "org/talks", HF_HUB_OFFLINE="1") == answers[1:2]
    assert len(hub.requests) == asked
    hub.push("org/talks", {"new.jsonl": texts("x")})
    assert files(found(hub, tmp_path, "org/talks")[0]) == ["new.jsonl"]


def test_splits_that_no_readme_lists_are_refused(hub: Hub, tmp_path: Path) -> None:
    commit = hub.push("org/talks", {n: data for n, data in TALKS.items() if n != "README.md"})
    (refused,) = found(hub, tmp_path, "org/talks")
    glob = f"hf://datasets/org/talks@{commit}/data/train*.parquet"
    assert f"name those to read (test: 'hf://datasets/org/talks@{commit}/data/test" in refused
    assert f"train: '{glob}')" in refused
    (train,) = found(hub, tmp_path, glob)
    assert len(files(train)) == 2


def test_a_file_or_folder_of_that_name_comes_first(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/talks", TALKS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "talks").mkdir(parents=True)
    (answer,) = found(hub, tmp_path / "home", "org/talks")
    assert answer.startswith("SourceError: org/talks: no data file in it")
    (tmp_path / "org" / "talks" / "own.jsonl").write_bytes(texts("x"))
    (answer,) = found(hub, tmp_path / "home", "org/talks")
    assert answer == [["org/talks/own.jsonl", "own", "jsonl"]]
    assert not hub.requests


def test_configs_of_readme(hub: Hub, tmp_path: Path) -> None:
    card = """---
configs:
- {config_name: one, data_files: [{split: train, path: "x/*.jsonl"}, {split: held, path: y.jsonl}]}
- {config_name: all, data_files: "**/*.jsonl"}
---
"""
    tables = """---
configs:
- {config_name: two, data_files: z.parquet, default: true}
- {config_name: piped, data_files: z.csv, sep: "|"}
---
"""
    folder = {"x/b.jsonl": texts("b"), "x/a.jsonl": texts("a"), "y.jsonl": texts("y")}
    hub.push("org/many", {"README.md": card.encode(), **folder})
    hub.push("org/tables", {"README.md": tables.encode(), "z.parquet": parquet("z"), "a.png": b""})
    one, every, held, none, split, two, piped = found(
        hub, tmp_path, "org/many:one", "org/many:all", "org/many:one#held", "org/many",
        "org/many:one#test", "org/tables", "org/tables:piped",
    )  # fmt: skip
    assert files(every) == ["a.jsonl", "b.jsonl", "y.jsonl"]
    assert files(one) == ["a.jsonl", "b.jsonl"] and one[0][1] == "many/one"
    assert files(two) == ["z.parquet"] and two[0][1:] == ["tables", "parquet"]
    assert files(held) == ["y.jsonl"] and held[0][1] == "many/one/held"
    assert "name a config, org/name:CONFIG; its README has one, all" in none
    assert "config piped states sep='|', which is not applied here" in piped
    assert "there is no split 'test', but held, train: name one" in split
    assert not list(tmp_path.rglob("a.png"))


def test_what_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.push("org/talks", TALKS)
    hub.push("org/words", {"a.txt": b"a\n", "b.txt": b"b\n"})
    nowhere, revision, words, url = found(
        hub, tmp_path, "org/nowhere", "org/talks@v9", "org/words", "hf://datasets/org/nowhere/a.csv"
    )
    assert nowhere.startswith("SourceError: org/nowhere: no such file or folder is here, and the ")
    assert "Invalid rev id" in revision or "v9" in revision
    assert "org/words has no data file" in words
    assert "the Hub's data set org/nowhere cannot be had" in url


def test_mixes_name_data_sets_of_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/talks", TALKS)
    monkeypatch.chdir(tmp_path)
    meta = {
        "own": {"file_name": "hf://datasets/org/talks", "split": "test"},
        "file": {"file_name": "hf://datasets/org/talks/data/train-00000-of-00002.parquet"},
    }
    (tmp_path / "mix.yaml").write_text(json.dumps(meta))
    (both,) = found(hub, tmp_path / "home", "mix.yaml")
    assert [shard[1] for shard in both] == ["own", "file"]
    assert files(both) == ["test-00000-of-00001.parquet", "train-00000-of-00002.parquet"]
