"""Continuing in the middle of an epoch: consumed + remaining + excluded is everything, once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.errors import MismatchError
from packidx.torch import PackSampler


def write(path: Path, n: int = 4000) -> Path:
    rng = np.random.default_rng(n)
    table = pa.table(
        {
            "length": rng.integers(5, 300, n),
            "source": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
            "key": [f"k{i}" for i in range(n)],
        }
    )
    pq.write_table(table, path)
    return path


def test_the_command_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = write(tmp_path / "l.parquet")
    index = str(tmp_path / "i")
    assert main(["plan", str(lengths), "-o", index, "--capacity", "512", "--mix", "c=2"]) == 0
    first = open_index(index)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(PackSampler(first, global_batch=8).state_at(5)))
    command = ["plan", "--continue", str(state), "-o", index]
    assert main([*command, "--capacity", "1024"]) == 0
    second = open_index(index)
    options = second.manifest["options"]
    assert (options["capacity"], options["weights"]) == (1024, {"c": "2"})
    assert options["continues"]["snapshot_id"] == first.id
    assert second.manifest["parent"] == first.id
    capsys.readouterr()
    assert main(["plan", "--continue", str(state)]) == 2
    assert "needs -o DIR" in capsys.readouterr().err


def test_what_cannot_be_continued_says_so(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", 500)
    plan_packs(lengths, tmp_path / "i", capacity=512)
    index = open_index(tmp_path / "i")
    state = PackSampler(index, global_batch=4).state_at(2)
    plan_packs(lengths, tmp_path / "i", capacity=512, seed=1)
    other = open_index(tmp_path / "i")
    with pytest.raises(MismatchError, match="snapshot"):
        plan_packs(lengths, tmp_path / "i", resume=(other, state))
    with pytest.raises(MismatchError, match="fingerprint"):
        plan_packs(write(tmp_path / "m.parquet", 501), tmp_path / "i", resume=(index, state))
