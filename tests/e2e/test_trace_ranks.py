"""`trace_step` gives every rank the packs that its PackSampler yields."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.trace import trace_step
from packidx.torch import PackSampler


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """With pieces and copies; its steps are of twelve packs."""
    folder = tmp_path_factory.mktemp("traced")
    lengths = [30 + 7 * n % 160 for n in range(400)]
    table = pa.table({"length": lengths, "source": ["a", "b"] * 200, "key": list("xyzw") * 100})
    pq.write_table(table, folder / "l.parquet")
    plan_packs(
        folder / "l.parquet",
        folder / "i",
        capacity=128,
        on_long="split",
        mix=("a=1.5",),
        global_batch=12,
        micro_steps=2,
    )
    return open_index(folder / "i")


@settings(max_examples=12)
@given(st.data())
def test_ranks_accumulation_epochs_and_resumed_runs(index: Index, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 4))
    options: dict[str, Any] = {
        "global_batch": world_size * data.draw(st.integers(1, 5)),
        "seed": data.draw(st.integers(0, 3)),
        "epoch": data.draw(st.integers(0, 7)),
    }
    rank = data.draw(st.integers(0, world_size - 1))
    sampler = PackSampler(index, rank=rank, world_size=world_size, **options)
    done = data.draw(st.integers(0, sampler.num_steps))
    state = PackSampler(index, **options).state_at(done)
    sampler.load_state_dict(state)
    mine = list(sampler)
    per_rank = options["global_batch"] // world_size
    for step in range(done, min(sampler.num_steps, done + 3)):
        traced = trace_step(index, step, rank=rank, world_size=world_size, **options)
        packs = [pack["pack_id"] for pack in traced["packs"]]
        assert packs == mine[(step - done) * per_rank :][:per_rank]
        everyone = trace_step(index, step, state=state)
        assert [pack["pack_id"] for pack in everyone["packs"]] == sampler.packs_of_step(step)
        assert not everyone["consumed"]
    if done:
        assert trace_step(index, done - 1, state=state)["consumed"]
