"""The losses of a run's log that stand out, and logs of other snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx.errors import FormatError, NotFoundInIndex, SourceError
from packidx.format.step_log import STEP_LOG, part_name
from packidx.index import Index, open_index
from packidx.inspect.sql import asked, connect, rows_of
from packidx.plan import plan_packs

POISONED = {7, 2_000, 4_007}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Path]:
    """A run whose losses fall, one source's lie at ten times the other's, and three samples stand
    out: by as much as the other source has anyway."""
    folder, random = tmp_path_factory.mktemp("logged"), np.random.default_rng(0)
    sources = ["easy" if number % 4 else "hard" for number in range(6_000)]
    columns = {"length": random.integers(5, 60, 6_000), "source": sources}
    pq.write_table(pa.table(columns), folder / "lengths.parquet")
    plan_packs(folder / "lengths.parquet", folder / "index", capacity=256, global_batch=8)
    index = open_index(folder / "index")
    query = (
        "SELECT step, pack_id, samples.position, sample_id, source FROM steps JOIN samples USING"
    )
    found = index.duckdb().execute(f"{query} (pack_id) WHERE step IS NOT NULL").fetchall()
    by_step: dict[int, list[dict[str, Any]]] = {}
    for step, pack, position, ident, source in found:
        loss = (10.0 if source == "hard" else 1.0) * (0.2 + np.exp(-step / 20))
        loss *= 1 + 0.1 * random.standard_normal() + 8 * (ident in POISONED)
        row = {"pack_id": pack, "position": position, "sample_id": ident}
        row |= {"label_tokens": 10, "loss": 10 * loss}
        by_step.setdefault(step, []).append(row)
    by_step[3].append({"label_tokens": 5, "loss": 40.0})  # of which nobody knows the sample
    same = {"snapshot_id": index.id, "session": 1, "epoch": 0, "rank": 0, "world_size": 1}
    rows = [{**same, "step": step, "samples": samples} for step, samples in by_step.items()]
    (folder / "log").mkdir()
    table = pa.Table.from_pylist(rows, STEP_LOG)
    pq.write_table(table, folder / "log" / part_name(1, 0, 0))
    return index, folder / "log"


def test_outliers_are_of_their_source_and_time(logged: tuple[Index, Path]) -> None:
    index, log = logged
    question = asked(index.path, {}, str(log))
    with connect(question.views("outliers")) as connection:
        found = rows_of(connection, "SELECT * FROM outliers ORDER BY sigmas DESC")
    assert {row["sample_id"] for row in found[:3]} == POISONED
    assert found[2]["sigmas"] > 20 and len(found) <= 5
    assert all(row["per_token"] == pytest.approx(row["loss"] / 10) for row in found)


def test_a_log_of_something_else_is_refused(logged: tuple[Index, Path], tmp_path: Path) -> None:
    index, log = logged
    plan_packs(Path(index.path).parent / "lengths.parquet", tmp_path / "other", capacity=512)
    with pytest.raises(SourceError, match=f"it is of @{index.id[:12]}, ask that"):
        asked(str(tmp_path / "other"), {}, str(log))
    with pytest.raises(NotFoundInIndex):
        asked(str(Path(index.path).parent / "lengths.parquet"), {}, str(log))
    (tmp_path / part_name(1, 0, 0)).write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="is damaged, or not part of a log"):
        asked(index.path, {}, str(tmp_path))
