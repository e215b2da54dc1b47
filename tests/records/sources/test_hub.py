"""Data sets of the Hub: which files of which commit a name stands for, and where they are read."""

from __future__ import annotations

import io
import json
import zipfile
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
from packidx.records.sources.folders import Told
for arg in sys.argv[1:]:
    try:
        told = Told()
        shards = find_shards([arg], told=told)
        print(json.dumps([[s.uri, s.source, s.container] for s in shards] + told.taken_from))
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
    "data/train-00000-of-00002.parquet": parquet("a"),
    "data/train-00001-of-00002.parquet": parquet("b"),
    "data/test-00000-of-00001.parquet": parquet("t"),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


def found(hub: Hub, home: Path, *args: str, **environment: str) -> list[Any]:
    """For each argument its shards (uri, source, container) and what is said of them, or an
    error."""
    done = hub.run(home, "-c", FIND, *args, **environment)
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files(answer: Any) -> list[str]:
    """The file names of what was found."""
    assert isinstance(answer, list), answer
    return [shard[0].rpartition("/")[2] for shard in answer if isinstance(shard, list)]


@pytest.mark.parametrize(
    ("arg", "name"),
    [
        ("org/name", ("org/name", None, None, ("train",))),
        ("org/na.me-2@v1", ("org/na.me-2", "v1", None, ("train",))),
        ("org/name@refs/convert/parquet", ("org/name", "refs/convert/parquet", None, ("train",))),
        ("org/name@a%2Fb:c d#x, y", ("org/name", "a/b", "c d", ("x", "y"))),
        ("hf://datasets/org/name:c#x", ("org/name", None, "c", ("x",))),
    ],
)
def test_names(arg: str, name: tuple[Any, ...]) -> None:
    assert hub_names.named(arg) == hub_names.Name(*name)


@pytest.mark.parametrize(
    "arg",
    ["name", "./org/name", "/org/name", "a/b/c", "org/a.jsonl", "org/m.yaml", "org/*", "a=org/name",
     "s3://org/name", "hf://datasets/org/name/data", "hf://org/name", "org/", "org/name@x/y"],
)  # fmt: skip
def test_what_is_no_name(arg: str) -> None:
    assert hub_names.named(arg) is None


def test_a_split_is_found_at_the_commit_of_a_branch(hub: Hub, tmp_path: Path) -> None:
    first = hub.push("org/talks", TALKS)
    hub.push("org/talks", {"old.jsonl": texts("x")}, "v1")
    at = f"hf://datasets/org/talks@{first}/data"
    train = [[f"{at}/train-0000{i}-of-00002.parquet", "talks", "parquet"] for i in (0, 1)]
    said = f"org/talks at {first}: 2 files from the Hub"
    answers = found(
        hub, tmp_path, "org/talks", "hf://datasets/org/talks", f"org/talks@{first}#test,train",
        "own=org/talks@v1", "hf://datasets/org/talks/data/train-*.parquet", "hf://datasets/org/talks/data",
    )  # fmt: skip
    assert answers[0] == answers[1] == [*train, said]
    test = [f"{at}/test-00000-of-00001.parquet", "talks/test", "parquet"]
    assert answers[2][:-1] == [test, *train]
    assert answers[3][0][1] == "own" and files(answers[3]) == ["old.jsonl"]
    assert [shard[0] for shard in answers[4][:-1]] == [shard[0] for shard in train]
    assert answers[4][-1] == f"org/talks at {first}: from the Hub"
    assert [shard[1] for shard in answers[5][:-1]] == ["train", "train"]
    hub.push("org/talks", {"new.jsonl": texts("x")})
    assert files(found(hub, tmp_path, "org/talks")[0]) == ["new.jsonl"]


def test_a_file_or_folder_of_that_name_comes_first(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/talks", TALKS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "talks").mkdir(parents=True)
    (answer,) = found(hub, tmp_path / "home", "org/talks")
    assert answer == "SourceError: org/talks: no data file in it; " + answer.partition("; ")[2]
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
- {config_name: two, data_files: z.csv, default: true}
- {config_name: piped, data_files: z.csv, sep: "|"}
- {config_name: bare, data_files: z.csv, header: null}
---
"""
    folder = {"x/b.jsonl": texts("b"), "x/a.jsonl": texts("a"), "y.jsonl": texts("y")}
    hub.push("org/many", {"README.md": card.encode(), **folder})
    hub.push("org/tables", {"README.md": tables.encode(), "z.csv": b"text\nz\n"})
    one, every, held, none, split, two, piped, bare = found(
        hub, tmp_path, "org/many:one", "org/many:all", "org/many:one#held", "org/many",
        "org/many:one#test", "org/tables", "org/tables:piped", "org/tables:bare",
    )  # fmt: skip
    assert files(every) == ["a.jsonl", "b.jsonl", "y.jsonl"]
    assert files(one) == ["a.jsonl", "b.jsonl"] and one[0][1] == "many/one"
    assert files(two) == ["z.csv"] and two[0][1:] == ["tables", "csv"]
    assert files(held) == ["y.jsonl"] and held[0][1] == "many/one/held"
    assert "Config name is missing" in none and "named org/name:CONFIG" in none
    assert "config piped states sep='|', which is not applied here" in piped
    assert "config bare states header=None" in bare
    assert "there is no split 'test', but held, train: name one" in split


def test_what_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.push("org/talks", TALKS)
    hub.push("org/script", {"script.py": b"open('run', 'w')", "data.jsonl": texts("x")})
    hub.push("org/words", {"a.txt": b"a\n", "b.txt": b"b\n"})
    hub.push("org/empty", {"README.md": b"nothing"})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.jsonl", texts("x"))
    hub.push("org/packed", {"a.zip": packed.getvalue()})
    nowhere, revision, script, words, empty, zipped, url = found(
        hub, tmp_path, "org/nowhere", "org/talks@v9", "org/script", "org/words", "org/empty",
        "org/packed", "hf://datasets/org/nowhere/a.jsonl",
    )  # fmt: skip
    assert nowhere.startswith("SourceError: org/nowhere: no such file or folder is here, http://")
    assert str(tmp_path / "hub/datasets--org--nowhere") in nowhere
    assert "org/talks has no revision 'v9' at http://127.0.0.1" in revision
    assert "scripts are no longer supported" in script
    assert "2 of 2 files of split train are not read, such as hf://datasets/org/words@" in words
    assert "`datasets` says: " in empty and "contain any data files" in empty
    assert "1 of 1 files of split train are not read" in zipped
    assert "has no such repository" in url and "datasets--org--nowhere does not have it" in url


@pytest.mark.slow
def test_what_the_hub_cache_has(hub: Hub, tmp_path: Path) -> None:
    commit = hub.push("org/talks", TALKS)
    offline = {"HF_HUB_OFFLINE": "1"}
    hub.run(tmp_path, "-c", DOWNLOAD, "org/talks", "data/train-00000*")
    (answer,) = found(hub, tmp_path, "org/talks")
    assert answer[-1].endswith("2 files from the Hub")
    url = "hf://datasets/org/talks/data/train-*.parquet"
    one = "hf://datasets/org/talks@main/data/train-00000-of-00002.parquet"
    name, path, single = found(hub, tmp_path, "org/talks", url, one, **offline)
    assert "has a part of it alone: run `hf download org/talks --repo-type dataset`" in name
    assert "has a part of it alone" in path and len(files(single)) == 1
    for listing in tmp_path.glob("hub/datasets--org--talks/trees/*"):
        listing.unlink()  # which older releases do not have
    (name,) = found(hub, tmp_path, "org/talks", **offline)
    assert "has 1 of 2 shards: run `hf download`" in name
    hub.run(tmp_path, "-c", DOWNLOAD, "org/talks")
    folder = tmp_path / "hub" / "datasets--org--talks" / "snapshots" / commit
    hub.requests.clear()
    local, remote = found(
        hub, tmp_path, "org/talks", "hf://datasets/org/talks/data/train-*.parquet"
    )
    assert [shard[0] for shard in local[:-1]] == [
        str(folder / "data" / f"train-0000{number}-of-00002.parquet") for number in (0, 1)
    ]
    assert local[-1].endswith(f"2 files from the hub cache, {folder.parents[1]}")
    assert remote[0][0].startswith(f"hf://datasets/org/talks@{commit}/")
    name, path = found(hub, tmp_path, "org/talks", url, **offline)
    assert name[:-1] == local[:-1] and [s[0] for s in path[:-1]] == [s[0] for s in local[:-1]]
    assert f"org/talks at {commit}: 2 files from the hub cache, {folder}, since" in name[-1]


def test_mixes_name_data_sets_of_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/talks", TALKS)
    monkeypatch.chdir(tmp_path)
    listed = {"datasets": [{"path": "org/talks", "data_type": "hf_dataset"}]}
    meta = {
        "own": {"file_name": "hf://datasets/org/talks", "split": "test"},
        "file": {"file_name": "hf://datasets/org/talks/data/train-00000-of-00002.parquet"},
    }
    for number, content in enumerate((listed, meta)):
        (tmp_path / f"{number}.yaml").write_text(json.dumps(content))
    one, both = found(hub, tmp_path / "home", "0.yaml", "1.yaml")
    assert len(files(one)) == 2 and one[0][1] == "talks"
    assert [shard[1] for shard in both if isinstance(shard, list)] == ["own", "file"]
    assert files(both) == ["test-00000-of-00001.parquet", "train-00000-of-00002.parquet"]
    assert both[0][0].startswith("hf://datasets/org/talks@")
