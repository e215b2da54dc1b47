"""A plan against its data: what has changed since is found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import OptionError
from packidx.index import Index
from packidx.inspect.verify import verify


def encode(record: Mapping[str, Any]) -> dict[str, list[int]]:
    """As long as the estimate without a processor: a third of the characters."""
    characters = sum(len(turn["content"]) for turn in record["messages"])
    return {"input_ids": [0] * (characters // 3)}


@pytest.fixture
def planned(tmp_path: Path) -> Index:
    with open(tmp_path / "talk.jsonl", "w") as file:
        for number in range(50):
            turns = [("user", "why? " * (number + 1)), ("assistant", "because. ")]
            messages = [{"role": role, "content": text} for role, text in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    estimate_lengths(str(tmp_path / "talk.jsonl"), tmp_path / "lengths", workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=100, margin=0)
    return open_index(tmp_path / "index")


def failed(index: Index, **options: Any) -> dict[str, str]:
    return {check.name: check.detail for check in verify(index, **options) if not check.ok}


def test_untouched_data_passes(planned: Index) -> None:
    checks = list(verify(planned, encoder=encode, num_sampled=50))
    assert [check for check in checks if not check.ok] == []
    assert [check.name for check in checks[-3:]] == ["shards", "encoder", "samples"]
    assert "50 samples encoded" in checks[-1].detail


def test_a_shard_of_the_same_size_but_other_content(planned: Index, tmp_path: Path) -> None:
    shard = tmp_path / "talk.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"because", b"becauze"))
    assert failed(planned) == {"shards": f"{shard} has changed since it was counted"}


def test_moved_data_is_found_with_roots(planned: Index, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "talk.jsonl", tmp_path / "new" / "talk.jsonl")
    assert "--root" in failed(planned)["shards"]
    moved = open_index(planned, {str(tmp_path): str(tmp_path / "new")})
    assert failed(moved, encoder=encode, num_sampled=50) == {}


def test_another_lengths_table_in_its_place(planned: Index, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"messages": [{"role": "user", "content": "abc"}]}\n')
    estimate_lengths(str(tmp_path / "other.jsonl"), tmp_path / "lengths", workers=1)
    assert set(failed(planned)) == {"lengths table"}


def test_lengths_that_are_not_true_are_named(planned: Index) -> None:
    def longer(record: Mapping[str, Any]) -> dict[str, list[int]]:
        return {"input_ids": encode(record)["input_ids"] + [0]}

    found = failed(planned, encoder=longer, num_sampled=7)
    assert set(found) == {"samples"}
    assert found["samples"].count("planned were") == 5
    assert "and 2 more" in found["samples"]


def test_sampling_needs_an_encoder(planned: Index) -> None:
    with pytest.raises(OptionError, match="--processor"):
        list(verify(planned, num_sampled=1))


NO_TORCH = """
import sys
sys.modules["torch"] = None
from packidx_cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_a_package_that_encoding_needs_there_is_no_verdict(
    tmp_path: Path, processors: Path
) -> None:
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    processor = str(processors / "qwen3-vl")
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    estimate_lengths(str(tmp_path / "talk.jsonl"), lengths, processor=processor, workers=1)
    plan_packs(lengths, index, capacity=100)
    command = ["verify", str(index), "--processor", processor, "--sample", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_TORCH, *command], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.count("\n") == 1 and 'pip install "packidx[' in done.stderr
