"""What is lost of the tokens that were to be packed, each counted once; the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from told_facts import facts_of

LONG = 300
"""Tokens of the four samples that no pack of `CAPACITY` has room for."""
CAPACITY = 128


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    length = np.r_[np.full(200, 40), np.full(4, LONG)]
    source = np.array(["a"] * 100 + ["b"] * 100 + ["b"] * 4)
    pq.write_table(pa.table({"length": length, "source": source}), tmp_path / "l.parquet")
    return str(tmp_path / "l.parquet")


def test_plan_and_stats_say_the_same_share_and_what_was_left_out_beside_it(
    lengths: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = str(tmp_path / "i")
    command = ["plan", lengths, "-o", index, "--capacity", str(CAPACITY), "--epochs", "3"]
    assert main([*command, "--mix", "a=0"]) == 0
    said = facts_of(capsys.readouterr().out)
    assert said["dropped"] == "1,200 tokens, 23.1 % of the 5,200 to be packed (4 too_long)"
    assert said["left out"] == "100 mix"
    assert main(["stats", index]) == 0
    again = facts_of(capsys.readouterr().out)
    assert (again["dropped"], again["left out"]) == (said["dropped"], said["left out"])
    assert main(["stats", index, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["lost_percent"] == 100 * 1200 / 5200
