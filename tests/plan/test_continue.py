"""Continuing in the middle of an epoch: consumed + remaining + excluded is everything, once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import path_of
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.errors import MismatchError
from packidx.index import Index
from packidx.torch import PackSampler

Copy = tuple[int, int]


def write(path: Path, n: int = 4000, longest: int = 300) -> Path:
    rng = np.random.default_rng(n)
    table = pa.table(
        {
            "length": rng.integers(5, longest, n),
            "source": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
            "key": [f"k{i}" for i in range(n)],
        }
    )
    pq.write_table(table, path)
    return path


def trained(index: Index, sampler: PackSampler, steps: int) -> dict[Copy, set[int]]:
    """(sample, copy) -> the tokens of it that the first `steps` steps train on."""
    packs = {pack for step in range(steps) for pack in sampler.packs_of_step(step)}
    return tokens_of(index, packs)


def tokens_of(index: Index, packs: set[int] | None = None) -> dict[Copy, set[int]]:
    found: dict[Copy, set[int]] = {}
    for row in index.samples().to_pylist():
        if packs is None or row["pack_id"] in packs:
            tokens = found.setdefault((row["sample_id"], row["copy"]), set())
            span = set(range(row["token_start"], row["token_start"] + row["length"]))
            assert not tokens & span
            tokens |= span
    return found


def test_the_command_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = write(tmp_path / "l.parquet")
    index = str(tmp_path / "i")
    assert main(["plan", str(lengths), "-o", index, "--capacity", "512", "--mix", "c=2"]) == 0
    first = open_index(index)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(PackSampler(first, global_batch=8).state_at(5)))
    command = ["plan", "--continue", str(state), "-o", index]
    assert main([*command, "--capacity", "1024"]) == 0
    second = open_index(index)
    options = second.manifest["options"]
    assert (options["capacity"], options["weights"]) == (1024, {"c": "2"})
    assert options["continues"]["snapshot_id"] == first.id
    assert second.manifest["parent"] == first.id
    capsys.readouterr()
    assert main(["plan", "--continue", str(state)]) == 2
    assert "needs -o DIR" in capsys.readouterr().err


def test_what_cannot_be_continued_says_so(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", 500)
    plan_packs(lengths, tmp_path / "i", capacity=512)
    index = open_index(tmp_path / "i")
    state = PackSampler(index, global_batch=4).state_at(2)
    plan_packs(lengths, tmp_path / "i", capacity=512, seed=1)
    other = open_index(tmp_path / "i")
    with pytest.raises(MismatchError, match="snapshot"):
        plan_packs(lengths, tmp_path / "i", resume=(other, state))
    with pytest.raises(MismatchError, match="fingerprint"):
        plan_packs(write(tmp_path / "m.parquet", 501), tmp_path / "i", resume=(index, state))


@pytest.mark.parametrize("on_long", ["drop", "split", "truncate"])
def test_samples_that_were_begun_are_consumed_in_every_later_plan(
    tmp_path: Path, on_long: str
) -> None:
    """Two changes of mind, copies and pieces: no later plan has a sample that training has had."""
    lengths = write(tmp_path / "l.parquet", 3000, longest=900)
    plan_packs(lengths, tmp_path / "i", capacity=512, on_long=on_long, mix=("c=2", "b=0.5"))
    had: set[int] = set()
    for capacity, mix in ((600, ("c=1",)), (400, ("c=3", "b=1"))):
        index = open_index(tmp_path / "i")
        sampler = PackSampler(index, global_batch=8, seed=capacity)
        had |= {sample for sample, _ in trained(index, sampler, 6)}
        state = sampler.state_at(6)
        plan_packs(lengths, tmp_path / "i", resume=(index, state), capacity=capacity, mix=mix)
        path_of(index).unlink()  # the next one needs no earlier plan
        rest = open_index(tmp_path / "i")
        packed = {sample for sample, _ in tokens_of(rest)}
        reasons = {row["sample_id"]: row["reason"] for row in rest.dropped().to_pylist()}
        assert packed.isdisjoint(had) and len(packed) > 500
        assert {sample for sample, reason in reasons.items() if reason == "consumed"} == had
        assert packed | reasons.keys() == set(range(3000))
        result = rest.snapshot.result
        table = pq.read_table(lengths)["length"].to_pylist()
        whole = sum(table[n] for n, why in reasons.items() if why == "too_long")
        firsts = tokens_of(rest)
        cut = sum(table[n] - len(firsts[n, 0]) for n in packed)
        assert result.num_tokens_lost == whole + cut


def test_a_later_epoch_is_continued_from_its_own_packs(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", 800)
    plan_packs(lengths, tmp_path / "i", capacity=512)
    index = open_index(tmp_path / "i")
    sampler = PackSampler(index, global_batch=4, epoch=3)
    had = trained(index, sampler, 5)
    plan_packs(lengths, tmp_path / "i", resume=(index, sampler.state_at(5)))
    rest = tokens_of(open_index(tmp_path / "i"))
    assert not had.keys() & rest.keys()
    assert len(had) + len(rest) == 800
