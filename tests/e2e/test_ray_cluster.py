"""Two nodes of Ray, each with a raylet of its own, share the work; one of them may die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray_work
from ray.cluster_utils import Cluster

from packidx import estimate_lengths, open_index, plan_packs
from packidx.estimate import tasks as work

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and another node, of one CPU each."""
    both = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    both.add_node(num_cpus=1)
    yield both
    both.shutdown()


@pytest.fixture(autouse=True)
def address(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """packidx joins it, and leaves it as it is."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr(work, "TASK_BYTES", 2000)


def write_talks(folder: Path, shards: int) -> str:
    folder.mkdir()
    for shard in range(shards):
        content = "word " * (700 + shard)
        record = {"messages": [{"role": "user", "content": content}]}
        (folder / f"shard-{shard:03d}.jsonl").write_text((json.dumps(record) + "\n") * 3)
    return str(folder)


def test_both_nodes_count_and_plan(tmp_path: Path) -> None:
    data = write_talks(tmp_path / "data", 60)
    words = ray_work.Words()
    estimate_lengths(data, tmp_path / "local", encode=words, workers=1)
    noted = ray_work.NodesNoted(tmp_path / "nodes")
    estimate_lengths(data, tmp_path / "ray", encode=noted, engine="ray")
    assert parts(tmp_path / "local") == parts(tmp_path / "ray")
    assert len(list((tmp_path / "nodes").iterdir())) == 2
    lengths = np.random.default_rng(0).integers(5, 500, 60_000)
    pq.write_table(pa.table({"length": lengths}), tmp_path / "l.parquet")
    rules: dict[str, Any] = {"capacity": 2048, "window": 3000}
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", **rules)
    plan_packs(tmp_path / "l.parquet", tmp_path / "j", engine="ray", **rules)
    one, two = open_index(tmp_path / "i"), open_index(tmp_path / "j")
    assert one.id == two.id and one.manifest["windows"] == two.manifest["windows"]
    assert not ray.is_initialized()


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name[:10]: path.read_bytes() for path in folder.glob("part-*")}
