"""`--schedule by:COLUMN`: packs by the mean rank of their samples, in every epoch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packidx_cli.main import cli
from small_packs import make_index, record

from packidx.errors import FormatError, OptionError
from packidx.index import Index
from packidx.torch import PackSampler

REPO = Path(__file__).parent.parent.parent


def records(seed: int, number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [record(n, [int(rng.integers(3, 60))]) for n in range(number)]


def mean_ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rank of each value from 1 on; equal ones have their mean rank."""
    below, equal = values[:, None] > values, values[:, None] == values
    return np.asarray(below.sum(axis=1) + (equal.sum(axis=1) + 1) / 2)


def ranks_of_packs(index: Index, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ranks = mean_ranks(values)
    packs = [index.pack(k).samples for k in range(index.num_packs)]
    return np.array([np.mean([ranks[each.sample_id] for each in pack]) for pack in packs])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), steps=st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 3)]))
def test_steps_are_in_the_order_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: tuple[int, int]
) -> None:
    folder = tmp_path_factory.mktemp("by")
    rng = np.random.default_rng(seed)
    values = rng.choice([0.5, 1.0, 2.0, 7.5], 120) + rng.integers(0, 2, 120) * rng.random(120)
    order = folder / "order.parquet"
    names = pl.DataFrame({"sample_id": np.arange(120), "hard": values})
    names.sample(fraction=1, shuffle=True, seed=1).write_parquet(order)
    index = make_index(
        folder, {"all": records(seed, 120)}, capacity=100, schedule="by:hard", order=str(order),
        global_batch=steps[0], micro_steps=steps[1],
    )  # fmt: skip
    means = ranks_of_packs(index, values)
    for epoch in range(3):
        sampler = PackSampler(index, seed=seed, epoch=epoch)
        taken = [means[sampler.packs_of_step(step)] for step in range(sampler.num_steps)]
        for before, after in zip(taken, taken[1:], strict=False):
            assert before.max() <= after.min() + 1e-9
    if steps[0] > 1:
        orders = {tuple(PackSampler(index, epoch=epoch)) for epoch in range(3)}
        assert len(orders) == 3, "the packs of a step are mixed anew in every epoch"
    ranks, packs = mean_ranks(values), range(index.num_packs)
    rows = [(ranks[each.sample_id], k) for k in packs for each in index.pack(k).samples]
    kept = np.corrcoef(np.array(rows).T)[0, 1]
    assert index.snapshot.result.order_kept == pytest.approx(kept, abs=1e-6)
    spec = importlib.util.spec_from_file_location("core", REPO / "examples" / "core_reader.py")
    assert spec is not None and spec.loader is not None
    core: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    read = core.CoreIndex(str(index.path))
    assert read.rank(steps[0], 0, 1, epoch=2, seed=5) == list(PackSampler(index, seed=5, epoch=2))


def test_a_column_of_the_lengths_and_keys_of_a_file(tmp_path: Path) -> None:
    for name in ("own", "keys"):
        (tmp_path / name).mkdir()
    rows = records(4, 90)
    own = make_index(
        tmp_path / "own", {"all": rows}, capacity=100, global_batch=2, schedule="by:length"
    )
    lengths = np.array([each["parts"][0] for each in rows])
    means = ranks_of_packs(own, lengths)
    steps = [means[PackSampler(own).packs_of_step(s)] for s in range(PackSampler(own).num_steps)]
    assert all(a.max() <= b.min() + 1e-9 for a, b in zip(steps, steps[1:], strict=False))
    file = tmp_path / "keys.parquet"
    pl.DataFrame({"key": [each["id"] for each in rows], "score": -lengths}).write_parquet(file)
    keys = make_index(
        tmp_path / "keys", {"all": rows}, capacity=100, global_batch=2, schedule="by:score",
        order=str(file),
    )  # fmt: skip
    first = ranks_of_packs(keys, lengths)[PackSampler(keys).packs_of_step(0)]
    assert first.min() >= means.mean()
    shown = CliRunner().invoke(cli, ["stats", str(keys.path), "--verbose"])
    assert "by:score: kept to 0." in " ".join(shown.output.split())


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    rows = records(1, 20)
    file, short, twice = (str(tmp_path / f"{name}.parquet") for name in ("o", "short", "twice"))
    pl.DataFrame({"sample_id": range(20), "x": range(20), "t": ["a"] * 20}).write_parquet(file)
    pl.DataFrame({"sample_id": range(19), "x": range(19)}).write_parquet(short)
    pl.DataFrame({"sample_id": [*range(20), 3], "x": range(21)}).write_parquet(twice)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"schedule": "by:x"}, OptionError, "the lengths have no number 'x'"),
        ({"schedule": "by:"}, OptionError, "schedule is 'by:'"),
        ({"schedule": "byx"}, OptionError, "schedule is 'byx'"),
        ({"order": file}, OptionError, "--order needs --schedule by:COLUMN"),
        ({"schedule": "by:y", "order": file}, FormatError, "has no column `y`"),
        ({"schedule": "by:t", "order": file}, OptionError, "t is no number"),
        ({"schedule": "by:x", "order": short}, FormatError, "1 samples of .* have no x"),
        ({"schedule": "by:x", "order": twice}, FormatError, "names 1 samples twice"),
        ({"schedule": "by:length", "window": 1}, OptionError, "planned in 2 windows"),
        ({"schedule": "by:length", "lanes": 2}, OptionError, "cannot be combined with lanes"),
        ({"schedule": "by:length", "align_media": True}, OptionError, "cannot be combined"),
    ]
    for number, (options, kind, words) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(kind, match=words):
            make_index(folder, {"a": rows[:10], "b": rows[10:]}, capacity=100, **options)
