"""Where a step is one micro-step the schedule has no power, and `stats` says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.inspect.stats import plan_stats
from packidx.inspect.verdict import verdict


def lengths(path: Path, n: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    pq.write_table(pa.table({"length": rng.lognormal(4, 1, n).astype(int) % 500 + 4}), path)
    return path


def verdicts(index: Path, ranks: int) -> tuple[str, dict[str, Any]]:
    """Return the sentence about waiting, and the numbers for this many ranks."""
    opened = open_index(index)
    told = plan_stats(opened, [ranks])
    (said,) = (line for line in verdict(opened, told) if "lost to waiting" in line)
    return said, told["schedule"][0]


def test_where_a_schedule_has_power_is_told(tmp_path: Path) -> None:
    path = lengths(tmp_path / "l.parquet", 6000, 0)
    # Of two micro-steps a step, of other packs in each: no rank waits long where there are two.
    plan_packs(path, tmp_path / "i", capacity=512, global_batch=16, micro_steps=2)
    said, _ = verdicts(tmp_path / "i", 8)
    assert "nothing to even out" not in said and "makes it worse" not in said
    said, found = verdicts(tmp_path / "i", 16)
    assert "one micro-step per step leaves the schedule nothing to even out" in said
    assert f"{100 * (1 - found['planned']['useful']):.1f} % of the time" in said
    plan_packs(path, tmp_path / "r", capacity=512, global_batch=8, schedule="random")
    assert "in random order" in verdicts(tmp_path / "r", 8)[0]


def test_plan_says_for_how_many_ranks_its_schedule_has_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lengths(tmp_path / "l.parquet", 600, 0))
    command = ["plan", path, "-o", str(tmp_path / "i"), "--capacity", "512"]
    assert main([*command, "--global-batch", "16", "--micro-steps", "4"]) == 0
    assert "stratified: 4 micro-steps of 4 packs per step, for up to 4 ranks" in (
        capsys.readouterr().out
    )
    assert main([*command, "--global-batch", "16", "--micro-steps", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one micro-step per step, for up to 16 ranks; steps are of" in said
