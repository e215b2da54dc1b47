"""A killed `packidx estimate` goes on where it was: same bytes, nothing twice, nothing mixed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dying import dying, statuses
from record_files import contents

from packidx.errors import OptionError
from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.records import shards

TASK_BYTES = 40_000
# Smaller tasks, so that there are many. In a script: a worker's start imports nothing but packidx.
RUN = f"""
import sys
from packidx.estimate import tasks as work
from packidx.records import shards as sources
from packidx.records.containers import lines
if __name__ == "__main__":
    sources.TASK_BYTES = work.TASK_BYTES = lines.SCAN_BLOCK = {TASK_BYTES}
    from packidx_cli.main import main
    sys.exit(main(sys.argv[1:]))
"""
DYING = dying(f"""
from packidx.estimate import tasks as work
from packidx.records import shards as sources
sources.TASK_BYTES = work.TASK_BYTES = {TASK_BYTES}
""")


def write(folder: Path, texts: list[str], per_shard: int = 20) -> str:
    """Shards of `per_shard` records each."""
    folder.mkdir()
    for first in range(0, len(texts), per_shard):
        lines = [
            json.dumps({"messages": [{"role": "user", "content": text}], "id": number})
            for number, text in enumerate(texts[first : first + per_shard], first)
        ]
        shard = folder / f"part-{first:06d}.jsonl"
        shard.write_text("".join(line + "\n" for line in lines))
    return str(folder)


def table(folder: Path) -> dict[str, bytes]:
    """The files of a table: what else is there is in none."""
    stated = json.loads((folder / "manifest.json").read_text())
    named = {file["path"] for file in stated["files"]} | {"manifest.json"}
    return {name: data for name, data in contents(folder).items() if name in named}


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(tasks, "TASK_BYTES", TASK_BYTES)


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", RUN, "estimate", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def test_killed_before_each_change_to_the_disk(tmp_path: Path) -> None:
    shard = write(tmp_path / "data", ["word " * 600] * 20, 10)
    old = write(tmp_path / "old", ["word " * 600] * 50, 10)
    root = tmp_path / "tables"
    root.mkdir()
    assert start([old, "-o", str(root / "out"), "--quiet"]).wait() == 0
    before = contents(root / "out")
    assert start([shard, "-o", str(tmp_path / "whole"), "--quiet"]).wait() == 0
    expected = contents(tmp_path / "whole")
    assert (len(before), len(expected)) == (6, 3)

    arguments = ["estimate", shard, "-o", str(root / "out"), "--quiet", "--workers", "1"]
    kills: dict[int, int] = {}  # by the number of parts that were finished before
    finished = 0

    def runs() -> Iterator[list[Any]]:
        nonlocal finished
        while True:
            finished = len(list(root.glob(".out.new/table/part-*")))
            yield [kills.get(finished, 0), str(root), arguments]

    for status in statuses(DYING, runs()):
        assert table(root / "out") in (before, expected)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills[finished] = kills.get(finished, 0) + 1
    # Building a part takes some changes, and so does putting the table in its place.
    assert set(kills) == {0, 1, 2} and min(kills.values()) >= 4
    assert contents(root / "out") == expected
    assert os.listdir(root) == ["out"]


def crash(monkeypatch: pytest.MonkeyPatch, at: int, run: Callable[[], LengthsSummary]) -> None:
    """Run until `at` parts are finished, then fail as Ctrl-C does."""
    real, done = tasks.write_part, 0

    def interrupt(*arguments: Any) -> Any:
        nonlocal done
        if done == at:
            raise KeyboardInterrupt
        done += 1
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_part", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return write(tmp_path / "data", [f"{number} word " * 400 for number in range(120)])


@pytest.mark.usefixtures("small_tasks")
def test_other_settings_take_nothing_over(
    shard: str, tmp_path: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    folder = str(processors / "qwen2.5-vl")

    def again(output: Path = out, source: str = shard, **options: Any) -> LengthsSummary:
        return estimate_lengths(source, output, workers=1, **options)

    plain = again(tmp_path / "plain")
    assert plain.num_parts > 5
    # Each of these finds three finished parts of another run and must not use them.
    for options in (
        {"processor": folder},
        {"media_root": tmp_path},
        {"seed": 1},
    ):
        crash(monkeypatch, 3, again)
        summary = again(**options)
        assert summary.resumed_parts == 0
        fresh = again(tmp_path / "fresh", **options)
        assert contents(out) == contents(tmp_path / "fresh")
        assert summary.fingerprint == fresh.fingerprint
    again(fresh=True)
    crash(monkeypatch, 3, lambda: again(seed=1))
    summary = again()
    assert summary.resumed_parts == 0
    assert contents(out) == contents(tmp_path / "plain")


@pytest.mark.usefixtures("small_tasks")
def test_damaged_parts_are_done_again(
    shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate_lengths(shard, tmp_path / "whole", workers=1)
    crash(monkeypatch, 6, lambda: estimate_lengths(shard, tmp_path / "out", workers=1))
    staging = tmp_path / ".out.new"
    parts = sorted((staging / "table").glob("part-*"))
    assert len(parts) == 6
    flipped = bytearray(parts[0].read_bytes())
    flipped[100] ^= 1
    parts[0].write_bytes(flipped)
    parts[1].unlink()
    parts[2].write_bytes(parts[2].read_bytes()[:-20])
    parts[3].write_bytes(b"")
    parts[4].rename(parts[4].with_name(parts[0].name))
    (staging / "table" / "part-99999.parquet").write_text("no part of this")
    assert estimate_lengths(shard, tmp_path / "out", workers=1).resumed_parts == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_tasks")
def test_an_encoder_without_fingerprint_starts_over(
    shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(record: dict[str, Any]) -> dict[str, list[int]]:
        return {"input_ids": [1] * len(record["messages"][0]["content"])}

    def run() -> LengthsSummary:
        return estimate_lengths(shard, tmp_path / "out", encode=encode, workers=1)

    crash(monkeypatch, 3, run)
    assert run().resumed_parts == 0
    encode.fingerprint = "1"  # type: ignore[attr-defined]
    crash(monkeypatch, 3, run)
    assert run().resumed_parts == 3


@pytest.mark.usefixtures("small_tasks")
def test_two_runs_do_not_share_a_folder(shard: str, tmp_path: Path) -> None:
    seen = []

    def meanwhile(phase: str, done: int, total: int) -> None:
        if phase == "count" and not seen:
            seen.append(done)
            with pytest.raises(OptionError, match="another run is making the lengths table"):
                estimate_lengths(shard, tmp_path / "out", workers=1)

    summary = estimate_lengths(shard, tmp_path / "out", workers=1, progress=meanwhile)
    assert seen
    assert summary.num_samples == 120
    assert not list(tmp_path.glob(".out*"))
