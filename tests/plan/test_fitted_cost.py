"""The example of docs/planning.md that fits the cost model to logged step times."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.format.step_log import STEP_LOG, part_name
from packidx.index import Index, open_index
from packidx.plan import plan_packs

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


def write_log(folder: Path, index: Index) -> None:
    """The log of an epoch whose steps take as long as `TRUTH` says."""
    steps = index.duckdb(world_size=RANKS).sql(
        "SELECT step, position % 4 AS rank, length, attention_cost, vision_patches, vision_cost"
        " FROM steps WHERE step IS NOT NULL ORDER BY position"
    )
    rows = steps.to_arrow_table().to_pylist()
    random = np.random.default_rng(1)
    for start in range(0, len(rows), RANKS):
        of_step = rows[start : start + RANKS]
        costs = [
            TRUTH["llm_linear"] * row["length"]
            + TRUTH["llm_attention"] * row["attention_cost"]
            + TRUTH["vit_attention"] * row["vision_cost"]
            + TRUTH["constant"]
            for row in of_step
        ]
        seconds = max(costs) * (1 + 0.05 * random.standard_normal())
        if of_step[0]["step"] % 97 == 5:
            seconds *= 5  # a checkpoint
        for row in of_step:
            row |= {"snapshot_id": index.id, "seed": 0, "global_batch": RANKS, "session": 1}
            row |= {"epoch": 0, "world_size": RANKS, "seconds": seconds, "samples": []}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, STEP_LOG), folder / part_name(1, 0, 0))


def example() -> tuple[str, str]:
    """The command and the script of the page."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    lines = [line[4:] for line in page.splitlines() if line.startswith("    ") or not line]
    first = next(at for at, line in enumerate(lines) if "FROM logged_steps" in line)
    start = lines.index("import numpy as np, polars as pl")
    stop = next(at for at, line in enumerate(lines) if line.startswith('print("--cost"'))
    return lines[first], "\n".join(lines[start : stop + 1])


def test_the_example_finds_the_true_weights(
    tmp_path: Path,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "runs", index)
    command, script = example()
    words = shlex.split(command.partition(" > ")[0])
    words = [{"packs": index.path, "runs/log": "runs"}.get(word, word) for word in words]
    assert main(words[1:]) == 0
    Path("steps.csv").write_text(capsys.readouterr().out)
    assert len(script.splitlines()) <= 20
    exec(compile(script, "docs/planning.md", "exec"), {})
    word, found = capsys.readouterr().out.split()
    assert word == "--cost"
    weights = {name: float(value) for name, value in (pair.split("=") for pair in found.split(","))}
    assert weights == pytest.approx({name: TRUTH[name] for name in weights}, rel=0.05)
    lengths = Path(index.path).parent / "lengths.parquet"
    fitted = plan_packs(lengths, tmp_path / "index", capacity=8192, cost=found)
    assert fitted.snapshot.options.cost_model.llm_linear == weights["llm_linear"]
