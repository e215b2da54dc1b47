"""An index and a plan tell what they are, whatever is in their names."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx import open_index, plan_packs

HOSTILE = "<script>alert('1')</script>&\"x"


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    rows = {"length": [5, 6, 7, 8, 99], "source": [HOSTILE] * 5}
    pq.write_table(pa.table(rows), tmp_path / "l.parquet")
    return tmp_path / "l.parquet"


def test_an_index_and_a_plan_are_told_in_a_line(lengths: Path, tmp_path: Path) -> None:
    summary = plan_packs(lengths, tmp_path / "index", capacity=16, margin=0.0)
    index = open_index(tmp_path / "index")
    held = "2 packs of 16 tokens, 81.25 % full, 1 sample in no pack"
    name = f"{tmp_path}/index@{index.id[:12]}, {held}"
    assert repr(index) == f"Index({name})"
    assert re.fullmatch(
        re.escape(f"PlanSummary({name}, planned in ") + r"\d+\.\d s\)", repr(summary)
    )
    again = plan_packs(lengths, tmp_path / "index", capacity=16, margin=0.0)
    assert repr(again) == f"PlanSummary({name}, was there already)"
