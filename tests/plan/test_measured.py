"""Costs out of step times: the true ones come back, and what cannot be told is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.errors import OptionError, SourceError
from packidx.format.step_log import STEP_LOG, part_name
from packidx.index import Index, open_index
from packidx.plan import plan_packs
from packidx.plan.measured import measured_cost

RANKS = 4
TRUTH = {"llm_linear": 2e-5, "llm_attention": 4e-9, "vit_attention": 5e-9, "constant": 0.06}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder, random = tmp_path_factory.mktemp("measured"), np.random.default_rng(0)
    length = np.minimum(random.lognormal(6.5, 1.0, 30_000).astype(np.int64) + 8, 8000)
    patches = np.where(random.random(30_000) < 0.5, random.integers(0, 4 * length), 0)
    table = {"length": length, "vision_patches": patches, "vision_cost": patches**2 // 4}
    pq.write_table(pa.table(table), folder / "lengths.parquet")
    options: dict[str, Any] = {"strategy": "next-fit", "schedule": "random", "global_batch": RANKS}
    options["max_samples"] = 3  # so that packs are of all sizes
    plan_packs(folder / "lengths.parquet", folder / "index", capacity=8192, **options)
    return open_index(folder / "index")


def write_log(
    folder: Path, index: Index, noise: float = 0.05, truth: dict[str, float] = TRUTH, **fixed: Any
) -> None:
    """The log of an epoch whose steps take as long as `truth` says."""
    steps = index.duckdb(world_size=RANKS).sql(
        "SELECT step, position % 4 AS rank, length, attention_cost, vision_patches, vision_cost"
        " FROM steps WHERE step IS NOT NULL ORDER BY position"
    )
    rows = steps.to_arrow_table().to_pylist()
    random = np.random.default_rng(1)
    for start in range(0, len(rows), RANKS):
        of_step = rows[start : start + RANKS]
        costs = []
        for row in of_step:
            row |= fixed
            costs.append(
                truth["llm_linear"] * row["length"]
                + truth["llm_attention"] * row["attention_cost"]
                + truth["vit_attention"] * row["vision_cost"]
                + truth["constant"]
            )
        seconds = max(costs) * (1 + noise * random.standard_normal())
        if of_step[0]["step"] % 97 == 5:
            seconds *= 5  # a checkpoint
        for row in of_step:
            row |= {"snapshot_id": index.id, "seed": 0, "global_batch": RANKS, "session": 1}
            row |= {"epoch": 0, "world_size": RANKS, "seconds": seconds, "samples": []}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, STEP_LOG), folder / part_name(1, 0, 0))


def test_the_true_costs_come_back(tmp_path: Path, index: Index) -> None:
    write_log(tmp_path, index)
    fitted = measured_cost(str(tmp_path))
    assert fitted.weights == pytest.approx(TRUTH, rel=0.05)
    assert fitted.error == pytest.approx(0.05, rel=0.1)
    assert fitted.explained > 0.9 and not fitted.unclear
    assert 0.008 < fitted.num_outliers / fitted.num_steps < 0.015


def test_steps_of_unknown_patches_are_left_out(tmp_path: Path, index: Index) -> None:
    write_log(tmp_path, index)
    [part] = tmp_path.iterdir()
    rows = pq.read_table(part).to_pylist()
    for row in rows:
        if row["step"] % 3 == 0 and row["rank"] == 1:
            row |= {"vision_patches": None, "vision_cost": None}
    rows[6]["seconds"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows, STEP_LOG), part)
    fitted = measured_cost(str(tmp_path))
    assert fitted.weights == pytest.approx(TRUTH, rel=0.05)
    steps = len({row["step"] for row in rows})
    assert fitted.num_steps + fitted.num_outliers == pytest.approx(steps * 2 / 3, abs=2)


def test_full_packs_do_not_tell_tokens_from_the_constant(tmp_path: Path, index: Index) -> None:
    """All packs have as many tokens: the constant is of no use to a plan, and is said to be."""
    write_log(tmp_path, index, length=8000)
    fitted = measured_cost(str(tmp_path))
    assert fitted.unclear == ["llm_linear", "constant"]
    assert fitted.weights.keys() == TRUTH.keys() - {"constant"}
    whole = TRUTH["llm_linear"] * 8000 + TRUTH["constant"]
    assert fitted.weights["llm_linear"] * 8000 == pytest.approx(whole, rel=0.05)
    assert fitted.weights["vit_attention"] == pytest.approx(TRUTH["vit_attention"], rel=0.05)


def test_what_cannot_be_fitted_is_refused(tmp_path: Path, index: Index) -> None:
    nothing = dict.fromkeys(TRUTH, 0.0)
    write_log(tmp_path / "idle", index, truth=nothing | {"constant": 1.0})
    with pytest.raises(OptionError, match="do not depend on the tokens"):
        measured_cost(str(tmp_path / "idle"))
    write_log(tmp_path / "none", index)
    part = next((tmp_path / "none").iterdir())
    pq.write_table(pq.read_table(part).slice(0, 19 * RANKS), part)
    with pytest.raises(OptionError, match="19 steps have a time, too few"):
        measured_cost(str(tmp_path / "none"))
    with pytest.raises(SourceError, match="holds no log of steps"):
        measured_cost(str(tmp_path))


def test_plan_takes_and_tells_them(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is the one of the numbers that are told, and serves ranks better."""
    write_log(tmp_path, index)
    folder = Path(index.path)
    lengths = str(folder.parent / "lengths.parquet")
    given = ["plan", lengths, "--capacity", "8192", "--global-batch", "64", "--json"]
    log = ["--cost", f"measured:{tmp_path}"]
    assert main([*given, "-o", str(folder), *log]) == 0
    out, err = capsys.readouterr()
    weights = json.loads(out)["options"]["cost_model"]
    for name, value in weights.items():
        assert value == pytest.approx(TRUTH.get(name, 0.0), rel=0.05)
    before, after = err.split("4 packs): ")[1].split(" % now")[0].split(" % before, ")
    assert 30 < float(before) < float(after) - 10 < 90
    assert "warning" not in err
    word = err.split("--cost ")[1].splitlines()[0]
    assert main([*given, "-o", str(tmp_path / "same"), "--cost", word]) == 0
    assert json.loads(capsys.readouterr().out)["snapshot_id"] == json.loads(out)["snapshot_id"]
    summary = plan_packs(lengths, tmp_path / "python", capacity=8192, global_batch=64, cost=log[1])
    assert summary.snapshot_id == json.loads(out)["snapshot_id"]


def test_a_fit_that_says_little_is_told(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, index, noise=0.3, length=8000, attention_cost=1, vision_cost=0)
    lengths = str(Path(index.path).parent / "lengths.parquet")
    given = ["plan", lengths, "-o", str(tmp_path / "index"), "--capacity", "8192", "--quiet"]
    assert main([*given, "--cost", f"measured:{tmp_path}"]) == 0
    err = capsys.readouterr().err
    assert "only a sum of them is known: llm_linear, llm_attention, constant" in err
    assert "these times hardly follow what the packs hold" in err
    assert "unknown (of a snapshot that is not in this index) before" in err
