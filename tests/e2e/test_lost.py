"""What is lost of the tokens that were to be packed, each counted once; the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from told_facts import facts_of

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.verify import verify_snapshot

LONG = 300
"""Tokens of the four samples that no pack of `CAPACITY` has room for."""
CAPACITY = 128


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    length = np.r_[np.full(200, 40), np.full(4, LONG)]
    source = np.array(["a"] * 100 + ["b"] * 100 + ["b"] * 4)
    pq.write_table(pa.table({"length": length, "source": source}), tmp_path / "l.parquet")
    return str(tmp_path / "l.parquet")


def planned(lengths: str, output: Path, **options: Any) -> Index:
    plan_packs(lengths, output, **{"capacity": CAPACITY} | options)
    index = open_index(output)
    assert [check for check in verify_snapshot(index) if not check.ok] == []
    return index


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


def test_rejected_records_are_told_beside_the_tokens_that_are_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have no tokens, so no share of tokens says how many they are."""
    said = []
    for name, number, length in (("a", 1, 40), ("b", 8, 40), ("c", 8, LONG)):
        columns = {
            "length": [40] * 20 + [length],
            "status": ["rejected"] * number + ["ok"] * (21 - number),
            "reason": ["no_text"] * number + [None] * (21 - number),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        command = ["plan", str(tmp_path / f"{name}.parquet"), "-o", str(tmp_path / name)]
        assert main([*command, "--capacity", str(CAPACITY)]) == 0
        said.append(facts_of(capsys.readouterr().out)["dropped"])
    assert said == [
        "0 tokens, 0.0 % of the 800 to be packed; 1 of the 21 records is rejected (4.8 %)",
        "0 tokens, 0.0 % of the 520 to be packed; 8 of the 21 records are rejected (38.1 %)",
        "300 tokens, 38.5 % of the 780 to be packed (1 too_long); "
        "8 of the 21 records are rejected (38.1 %)",
    ]
