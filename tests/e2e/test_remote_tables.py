"""Lengths and indexes in an S3 bucket: the same bytes as on disk, never half of anything."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dying import statuses
from manifests import file_of
from object_store import URL, Store
from packidx_cli.main import main

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import FormatError, NotFoundInIndex
from packidx.estimate.summary import first_rejected
from packidx.format.index import manifest_path
from packidx.index import Index, snapshot_ids
from packidx.inspect.verify import check_files, verify_index
from packidx.io import storage
from packidx.io.cache import local_copies

OPTIONS: dict[str, Any] = {"capacity": 512, "window": 1}  # shards
BARE = OPTIONS | {"window": 100}  # samples
TASK_BYTES = 4_000

# One process a line of stdin, forked so that it need not import everything again. It dies right
# before the n-th change that it is about to make to the store.
DYING = f"""
import json, os, signal, sys, threading
import packidx.estimate.api, packidx.plan, s3fs
import packidx_cli.commands.estimate, packidx_cli.commands.plan
from packidx.io import storage
from packidx.estimate import tasks as work
from packidx.records import shards as sources
from packidx.records.containers import lines
from packidx_cli.main import main
sources.TASK_BYTES = work.TASK_BYTES = lines.SCAN_BLOCK = {TASK_BYTES}

def run(left, arguments):
    lock = threading.Lock()
    def dying(call):
        def changed(*args):
            nonlocal left
            with lock:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*args)
        return changed
    for name in ("write", "upload_file", "remove_file"):
        setattr(storage, name, dying(getattr(storage, name)))
    sys.stdout = open(os.devnull, "w")
    return main(arguments)

for line in sys.stdin:
    child = os.fork()
    if not child:
        os._exit(run(*json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def url(store: Store, request: pytest.FixtureRequest) -> str:
    """A folder of the bucket for one test."""
    store.forget()
    return f"{URL}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from packidx.estimate import tasks
    from packidx.records import shards as sources
    from packidx.records.containers import lines

    monkeypatch.setattr(sources, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(lines, "SCAN_BLOCK", TASK_BYTES)
    monkeypatch.setattr(tasks, "TASK_BYTES", TASK_BYTES)


def talks(path: Path, count: int, start: int = 0) -> str:
    """A shard of `count` records, the last of them none."""
    lines = [
        {"id": f"{n}", "messages": [{"role": "user", "content": "word " * (1 + n % 40)}]}
        for n in range(start, start + count - 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"id": "bad"}]))
    return str(path)


def bare(path: Path, count: int = 400, seed: int = 0) -> str:
    lengths = np.random.default_rng(seed).integers(5, 300, count)
    pq.write_table(pa.table({"length": lengths, "source": ["a"] * count}), path)
    return str(path)


def tables(index: Index) -> dict[str, bytes]:
    """Parquet files by where they are in the index."""
    paths = [file.path for file in index.files()]
    return {path.removeprefix(index.path).strip("/"): storage.read(path) for path in paths}


def packs(index: Index) -> list[Any]:
    return [index.pack(number) for number in range(index.num_packs)]


@pytest.mark.usefixtures("small_tasks")
def test_both_ends_in_the_bucket_give_the_local_bytes(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [talks(tmp_path / f"{n}.jsonl", 100, 1000 * n) for n in range(3)]
    here = estimate_lengths(shards, tmp_path / "lengths", workers=1)
    there = estimate_lengths(shards, f"{url}/lengths", workers=1)
    assert there.fingerprint == here.fingerprint and not there.existed
    assert there.num_parts > 3
    for name in os.listdir(tmp_path / "lengths"):
        if name != "manifest.json":
            path = tmp_path / "lengths" / name
            assert storage.read(f"{url}/lengths/{name}") == path.read_bytes()
    assert estimate_lengths(shards, f"{url}/lengths", workers=1).existed
    kinds = [(one["name"], reason) for one in there.sources for reason in one["rejected"]]
    found = first_rejected(f"{url}/lengths", kinds)
    assert found == first_rejected(str(tmp_path / "lengths"), kinds) != {}

    local = open_index(plan_packs(tmp_path / "lengths", tmp_path / "index", **OPTIONS).path)
    assert len(local.manifest["windows"]) == 3
    for lengths in (tmp_path / "lengths", f"{url}/lengths"):
        for output in (f"{url}/index", str(tmp_path / "index")):
            made = plan_packs(lengths, output, **OPTIONS)
            assert made.snapshot_id == local.id
            index = open_index(f"{output}@{local.id[:6]}")
            assert tables(index) == tables(local)
            assert index.manifest["lengths"]["uri"] == str(lengths)
            assert plan_packs(lengths, output, **OPTIONS).existed
    stored = open_index(f"{url}/index/")
    assert stored.id == local.id and packs(stored) == packs(local)
    assert [one.ok for one in verify_index(stored)] == [one.ok for one in verify_index(local)]
    assert all(one.ok for one in verify_index(stored))
    assert stored.manifest["lengths"]["uri"] == f"{url}/lengths"
    assert b"loopback" not in storage.read(manifest_path(stored.path, stored.id))  # no credentials
    paths = local_copies(stored.files("packs"))
    assert Path(paths[0]).read_bytes() == file_of(local, "packs").read_bytes()

    for command in (["stats"], ["log"], ["verify"], ["sql", "DESCRIBE packs"]):
        assert main([*command[:1], f"{url}/index", *command[1:]]) == 0
    capsys.readouterr()
    connection = stored.duckdb()
    for view in ("steps", "sources", "rejected"):
        assert main(["sql", f"{url}/index", f"FROM {view}", "--format", "json"]) == 0
        rows = local.duckdb().sql(f"FROM {view}").fetchall()
        told = json.loads(capsys.readouterr().out)
        assert [tuple(row.values()) for row in told] == rows
        assert connection.sql(f"FROM {view}").fetchall() == rows
    query = "SELECT count(*) AS n, sum(l.length) AS s FROM lengths l JOIN samples USING (sample_id)"
    assert main(["sql", f"{url}/index", query, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 297, "s": here.num_tokens}]
    query = "SELECT count(*) AS n FROM lengths"
    assert main(["sql", f"{url}/lengths", query, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 300}]
    assert main(["sql", f"{url}/index", f"FROM read_parquet('{url}/index/x.parquet')"]) == 1
    assert "Cannot access file" in capsys.readouterr().err


def test_a_reader_asks_only_for_what_it_needs(tmp_path: Path, url: str, store: Store) -> None:
    plan_packs(bare(tmp_path / "l.parquet", 2000), f"{url}/index", **BARE)
    store.forget()
    index = open_index(f"{url}/index")
    assert [one.path.rpartition("/")[2] for one in store.requests] == ["HEAD", f"{index.id}.json"]
    assert len(index.files()) > 20  # two tables, twenty windows
    store.forget()
    first = index.pack(0)
    assert sorted(one.path.rpartition("/")[2] for one in store.requests) == [
        "packs-00000.parquet",
        "samples-00000.parquet",
    ]
    store.forget()
    again = pickle.loads(pickle.dumps(index))
    assert again.pack(0) == first
    assert store.read(".parquet") == 0  # the copies are shared
    assert len(pickle.dumps(index)) < 500


def test_a_copy_of_a_shard_that_was_cut_is_fetched_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    shard = Path(talks(tmp_path / "chats.jsonl", 200)).read_bytes()
    storage.write(f"{url}/data/chats.jsonl.gz", gzip.compress(shard))
    made = []
    for _ in range(2):
        estimate_lengths(f"{url}/data", tmp_path / "out", fresh=True, workers=1)
        made.append([part.read_bytes() for part in sorted((tmp_path / "out").glob("part-*"))])
        copies = [*(tmp_path / "cache/files").glob("*/*.gz")]
        for copy in [*copies, *(tmp_path / "cache/files").glob("*/*-chats.jsonl*")]:
            data = copy.read_bytes()
            copy.write_bytes(data[: len(data) // 3])
        assert copies
    assert made[0] == made[1]


def test_what_is_damaged_is_found_and_made_whole(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = bare(tmp_path / "l.parquet")
    index = open_index(plan_packs(lengths, url, **BARE).path)
    place = index.files("samples")[0].path
    sound = storage.read(place)
    storage.write(place, sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"samples-00000\.parquet has other content"):
        index.pack(0)
    assert not check_files(index).ok
    assert plan_packs(lengths, url, **BARE).existed
    assert storage.read(place) == sound
    assert index.pack(0).samples  # the damaged copy is not kept
    storage.remove_file(index.files("packs")[0].path)
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FormatError, match=r"packs-00000\.parquet is missing"):
        open_index(url).packs()
    assert "is missing" in check_files(index).detail
    storage.remove_file(manifest_path(url, index.id))
    with pytest.raises(NotFoundInIndex, match="has no HEAD of a snapshot"):
        open_index(url)


def test_a_killed_plan_leaves_the_old_snapshot_or_the_new(tmp_path: Path, url: str) -> None:
    lengths = bare(tmp_path / "l.parquet", 150)
    old = plan_packs(lengths, url, capacity=300).snapshot_id
    new = plan_packs(lengths, tmp_path / "i", capacity=512).snapshot_id
    options = ["--capacity", "512", "--quiet"]
    seen, ended = [], []
    command = ["plan", lengths, "-o", url, *options]
    tasks = ([moment, command] for moment in range(20))
    for moment, status in enumerate(statuses(DYING, tasks)):
        ended.append(status)
        index = open_index(url)
        seen.append(index.id)
        assert packs(index)  # it is whole
        listed = snapshot_ids(url)
        assert old in listed
        assert all(check_files(open_index(f"{url}@{ident}")).ok for ident in listed)
        if status == 0:
            break
        if moment % 2:  # the next one finds nothing of it, or what it has left
            kept = {file.path for file in open_index(f"{url}@{old}").files()}
            for name in storage.files_below(f"{url}/windows"):
                if (path := f"{url}/windows/{name}") not in kept:
                    storage.remove_file(path)
    assert set(ended[:-1]) == {-9} and ended[-1] == 0
    assert 4 < len(seen) < 20 and set(seen[:-1]) == {old} and seen[-1] == new
    assert snapshot_ids(url) == sorted([old, new])
    assert plan_packs(lengths, url, capacity=512).existed
    assert all(one.ok for one in verify_index(open_index(url)))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["stats", "s3://nobodys/index"], "there is no pack index at s3://nobodys/index"),
        (["log", "s4://corpus/index"], "s4://corpus/index"),
        (["plan", "s3://nobodys/l", "-o", "index", "--capacity", "9"], "s3://nobodys/l does not"),
        (["plan", f"{URL}/no*.parquet", "-o", "i", "--capacity", "9"], "matches no file"),
        (["plan", "LENGTHS", "-o", "s3://nobodys/i", "--capacity", "9"], "no bucket s3://nobodys"),
        (["estimate", "SHARD", "-o", "s3://nobodys/l"], "there is no bucket s3://nobodys"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    said: str,
) -> None:
    names = {"LENGTHS": tmp_path / "l.parquet", "SHARD": tmp_path / "a.jsonl"}
    bare(names["LENGTHS"])
    talks(names["SHARD"], 10)
    assert main([str(names.get(word, word)) for word in command]) == 1
    error = capsys.readouterr().err
    assert any(one in error for one in said.split("|"))
    assert error.startswith("packidx: ") and error.count("\n") == 1
    assert "Traceback" not in error and "defect" not in error
