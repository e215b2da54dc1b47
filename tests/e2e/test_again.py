"""Counting again where shards and tables lie in a bucket, and with Ray: the same is taken over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from object_store import URL, Store

from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.io import storage
from packidx.records import shards

TASK_BYTES = 4000


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(tasks, "TASK_BYTES", TASK_BYTES)


def talks(name: str, count: int = 60) -> bytes:
    turns = [[{"role": "user", "content": f"{name} " + "word " * (n % 40)}] for n in range(count)]
    return b"".join(json.dumps({"messages": own}).encode() + b"\n" for own in turns)


def stored(folder: str) -> dict[str, bytes]:
    names = [name for name in storage.names(folder) if not name.startswith(".")]
    return {name: storage.read(f"{folder}/{name}") for name in names}


def test_in_a_bucket(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = f"{URL}/data", f"{URL}/lengths"

    def again(output: str = out, **options: Any) -> LengthsSummary:
        store.forget()
        return estimate_lengths(data, output, workers=1, **options)

    for name in "abcd":
        storage.write(f"{data}/{name}.jsonl", talks(name))
    assert again().reused is None
    storage.write(f"{data}/b.jsonl", talks("b", 70))
    storage.remove(f"{data}/a.jsonl")
    scanned: list[str] = []
    scan = shards.scan
    monkeypatch.setattr(
        shards, "scan", lambda path, *rest: scanned.append(path) or scan(path, *rest)
    )
    summary = again()
    assert scanned == [f"{data}/b.jsonl"]
    assert summary.reused is not None and summary.reused.num_samples == 120
    assert summary.reused.counted == ["b.jsonl"]
    again(f"{URL}/elsewhere", fresh=True)
    assert stored(out) == stored(f"{URL}/elsewhere")
    assert again().existed
