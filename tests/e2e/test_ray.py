"""`--engine ray`: the bytes of the local engine, whatever dies on the way."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray_work
from packidx_cli.main import main
from plan_rules import broken_rules
from record_files import contents
from vlm_mix import write_mix

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import MissingExtraError, OptionError, SourceError
from packidx.estimate import tasks as work
from packidx.run.workers import ENGINES

pytestmark = pytest.mark.slow

N = 6000


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """One session for all tests but those that start their own; packidx takes the one there is."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )
    yield
    assert ray.is_initialized()  # nobody has closed it
    ray.shutdown()


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "TASK_BYTES", 2000)


@pytest.fixture
def talks(tmp_path: Path, small_tasks: None) -> Path:
    """Forty shards, a part each, of five records; one of them is broken."""
    return write_talks(tmp_path / "data")


def write_talks(folder: Path, shards: int = 40) -> Path:
    folder.mkdir()
    for shard in range(shards):
        lines = [
            json.dumps(
                {"messages": [{"role": "user", "content": "word " * (600 + 7 * shard + row)}]}
            )
            for row in range(5)
        ]
        lines[3] = lines[3][:-9] if shard == 3 else lines[3]
        (folder / f"shard-{shard:03d}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def both(tmp_path: Path, sources: Path, **options: Any) -> list[dict[str, bytes]]:
    """The tables of either engine."""
    estimate_lengths(str(sources), tmp_path / "local", workers=1, **options)
    estimate_lengths(str(sources), tmp_path / "ray", engine="ray", **options)
    return [contents(tmp_path / engine) for engine in ("local", "ray")]


def test_many_parts_an_encoder_and_a_transform(tmp_path: Path, talks: Path) -> None:
    options = {"encode": ray_work.Words(), "transform": shorter, "seed": 5}
    local, there = both(tmp_path, talks, **options)
    assert local == there
    assert len(local) == 41


def shorter(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    words = record["messages"][0]["content"].split()
    kept = words[: int(rng.integers(1, len(words)))]
    return {**record, "messages": [{"role": "user", "content": " ".join(kept)}]}


def test_a_killed_process_changes_nothing(tmp_path: Path, talks: Path) -> None:
    estimate_lengths(str(talks), tmp_path / "local", encode=ray_work.Words(), workers=1)
    dying = ray_work.Words(tmp_path / "mark", "die")
    found = estimate_lengths(str(talks), tmp_path / "ray", encode=dying, engine="ray")
    assert (tmp_path / "mark").exists() and found.num_parts == 40
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_what_always_dies_gets_one_sentence_and_keeps_the_rest(
    tmp_path: Path, small_tasks: None
) -> None:
    data = write_talks(tmp_path / "data", 9)
    words = ray_work.Words()
    estimate_lengths(str(data), tmp_path / "whole", encode=words, workers=1)
    dying = ray_work.Words(tmp_path / "mark", "die_late")
    with pytest.raises(SourceError, match=r"Ray gave up a task \(WorkerCrashed") as caught:
        estimate_lengths(str(data), tmp_path / "out", encode=dying, engine="ray")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
    found = estimate_lengths(str(data), tmp_path / "out", encode=words, engine="ray")
    assert (found.num_parts, found.resumed_parts) == (9, 8)
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def test_bad_use_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"length": [5, 6]}), tmp_path / "l.parquet")
    with pytest.raises(OptionError, match="engine is 'spark': choose one of local, ray"):
        plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=10, engine="spark")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'packidx\[ray\]'"):
        estimate_lengths(str(tmp_path), tmp_path / "o", engine="ray")
    with pytest.raises(MissingExtraError, match=r"pip install 'packidx\[ray\]'"):
        plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=10, engine="ray")


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mix(tmp_path_factory.mktemp("mix") / "lengths.parquet", N)


def plans(index: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The Parquet files of all snapshots, and the newest manifest but for its date and digest."""
    found = {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(index.glob("windows/*/*.parquet"))
    }
    assert not [one for one in os.listdir(index / "windows") if one.startswith(".")]
    manifest = open_index(index).manifest
    dated = ("created", "digest")  # the digest is one of the manifest with its date
    return found, {name: value for name, value in manifest.items() if name not in dated}


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"window": 1000, "schedule": "random"},
        {"window": 1500, "mix": ("source-0=0.3", "source-1=2.5"), "group_by": "media_type"},
        {"window": 2500, "on_long": "split", "max_images": 8, "strategy": "balanced"},
        {"window": 2500, "max_samples": 6, "holdout": "0.05"},
    ],
    ids=lambda rules: "-".join(rules) or "whole",
)
def test_plan_gives_the_same_bytes(lengths: Path, tmp_path: Path, rules: dict[str, Any]) -> None:
    for engine in ENGINES:
        plan_packs(lengths, tmp_path / engine, capacity=4096, engine=engine, **rules)
    plan_packs(lengths, tmp_path / "two", capacity=4096, workers=2, **rules)
    assert plans(tmp_path / "local") == plans(tmp_path / "ray") == plans(tmp_path / "two")
    assert broken_rules(open_index(tmp_path / "ray")) == []


def test_the_commands_take_the_engine(
    tmp_path: Path, talks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, index = str(tmp_path / "o"), str(tmp_path / "i")
    assert main(["estimate", str(talks), "-o", out, "--engine", "ray", "--quiet"]) == 0
    command = ["plan", out, "-o", index, "--capacity", "4096", "--window", "10"]
    assert main([*command, "--workers", "ray", "--quiet", "--json"]) == 0
    assert len(open_index(index).snapshot.windows) == 4
    assert main(["plan", out, "-o", index, "--capacity", "9", "--workers", "spark"]) == 2
    assert "'spark'" in capsys.readouterr().err
