"""Where samples are, why they are nowhere, and what was trained on before; without torch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import path_of
from packidx_cli.main import main
from training import Training

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import MismatchError, OptionError, PackidxError
from packidx.index import Index
from packidx.inspect import trace

CAPACITY = 256


def write(path: Path, n: int = 600, **columns: Any) -> Path:
    table = {
        "length": np.random.default_rng(n).integers(5, 250, n),
        "source": [("a", "b")[at % 2] for at in range(n)],
        "key": [f"photo-{at:05}" for at in range(n)],
    }
    pq.write_table(pa.table(table | columns), path)
    return path


def planned(folder: Path, lengths: Path | None = None, **options: Any) -> Index:
    lengths = lengths or write(folder / "l.parquet")
    plan_packs(lengths, folder / "i", **{"capacity": CAPACITY, "global_batch": 8} | options)
    return open_index(folder / "i")


def plain(told: Any) -> Any:
    """What is told as ``--json`` has it, its members as attributes."""
    return json.loads(json.dumps(told), object_hook=lambda row: SimpleNamespace(**row))


def trace_step(index: Index, step: int, **options: Any) -> Any:
    return plain(trace.trace_step(index, step, **options))


def trace_samples(index: Index, **options: Any) -> Any:
    return plain(trace.trace_samples(index, **options))


def only(index: Index, **options: Any) -> Any:
    [sample] = trace_samples(index, **options).samples
    return sample


def test_a_key_leads_to_its_pack_and_step(tmp_path: Path) -> None:
    index = planned(tmp_path)
    sample = only(index, key="photo-00017", world_size=4)
    assert (sample.sample_id, sample.source, sample.dropped) == (17, "b", None)
    [place] = sample.places
    held = index.pack(place.pack_id).samples[place.position]
    assert (held.sample_id, held.length) == (17, place.length)
    assert place.step is not None
    step = trace_step(index, place.step, rank=place.rank, world_size=4)
    [pack] = [pack for pack in step.packs if pack.pack_id == place.pack_id]
    assert (pack.micro_step, pack.place_in_step) == (place.micro_step, place.place_in_step)
    assert pack.samples[place.position].key == "photo-00017"
    assert only(index, sample_id=17, world_size=4) == sample


def test_a_key_of_several_sources_and_samples(tmp_path: Path) -> None:
    keys = [f"k{at // 2}" for at in range(600)]
    index = planned(tmp_path, write(tmp_path / "l.parquet", key=keys))
    both = trace_samples(index, key="k7").samples
    assert [(sample.sample_id, sample.source) for sample in both] == [(14, "a"), (15, "b")]
    assert only(index, key="k7", source="b").sample_id == 15
    with pytest.raises(OptionError, match="no source 'c' in .*: it has a, b"):
        trace_samples(index, key="k7", source="c")
    with pytest.raises(OptionError, match="give a key or a sample id, one of them"):
        trace_samples(index, key="k7", sample_id=3)
    with pytest.raises(OptionError, match="source goes with a key"):
        trace_samples(index, sample_id=3, source="a")


def test_what_is_dropped_says_why(tmp_path: Path) -> None:
    lengths = np.full(600, 100)
    lengths[[3, 8]] = [999, 0]
    table = write(
        tmp_path / "l.parquet",
        length=lengths,
        status=["rejected" if at == 5 else "ok" for at in range(600)],
        reason=["missing_media" if at == 5 else None for at in range(600)],
        detail=["no file a.png" if at == 5 else None for at in range(600)],
    )
    index = planned(tmp_path, table)
    told = {at: only(index, sample_id=at) for at in (3, 5, 8)}
    assert all(sample.dropped and not sample.places for sample in told.values())
    why = {at: (s.dropped.reason, s.dropped.detail) for at, s in told.items() if s.dropped}
    assert why[3] == ("too_long", f"999 tokens > {CAPACITY}")
    assert why[5] == ("rejected", "missing_media: no file a.png")
    assert why[8][0] == "empty"


def test_records_of_dropped_samples_are_named_too(tmp_path: Path) -> None:
    for name, number in (("a", 7), ("b", 0), ("c", 5)):
        with open(tmp_path / f"{name}.jsonl", "w") as file:
            for at in range(number):
                said = {"messages": [{"role": "user", "content": "so " * (9 + 200 * (at == 3))}]}
                file.write(json.dumps(said if at != 2 else {"what": at}) + "\n")
    estimate_lengths([str(tmp_path / f"{name}.jsonl") for name in "abc"], tmp_path / "l", workers=1)
    index = planned(tmp_path, tmp_path / "l", capacity=100)
    rows = pq.read_table(tmp_path / "l" / "part-00000.parquet").to_pylist()
    told = [only(index, sample_id=row["sample_id"]) for row in rows]
    assert {sample.dropped.reason for sample in told if sample.dropped} == {"rejected", "too_long"}
    shards = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    assert [(sample.shard, sample.row) for sample in told] == [
        (shards[row["shard"]], row["row"]) for row in rows
    ]


@pytest.mark.parametrize("asked", ["photo-00171x", "it's % ünknown", ""])
def test_keys_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    index = planned(tmp_path)
    assert not trace_samples(index, key=asked).samples
    assert main(["trace", index.path, "--key", asked, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["samples"] == []
    assert f"has no key {asked!r}: none of its 600 samples, packed or dropped" in printed.err
    assert main(["trace", index.path, "--sample-id", "600"]) == 1
    assert "has no sample 600: none of its 600 samples" in capsys.readouterr().err


def test_a_random_order_has_steps_where_they_are_given(tmp_path: Path) -> None:
    index = planned(tmp_path, schedule="random", global_batch=None)
    [place] = only(index, sample_id=5).places
    assert place.step is None and not place.left_out and place.order_position >= 0
    with pytest.raises(OptionError, match="no steps of its own .*: give the global batch"):
        trace_step(index, 0)
    [same] = only(index, sample_id=5, global_batch=4).places
    assert same.step == place.order_position // 4


def test_packs_that_an_epoch_leaves_out(tmp_path: Path) -> None:
    index = planned(tmp_path)
    left = index.num_packs % 7
    assert left
    out = []
    for ident in range(600):
        if ident % 3 == 0:
            out += [p for p in only(index, sample_id=ident, global_batch=7).places if p.left_out]
    assert out and all(place.step is None and place.rank is None for place in out)
    assert all(place.order_position >= index.num_packs - left for place in out)


def lineage(folder: Path) -> tuple[list[Index], list[dict[str, Any]], Path]:
    """A plan and two that go on from it: what was trained on, and where each was left."""
    lengths = write(folder / "l.parquet")
    indexes, states = [planned(folder, lengths, on_long="split", capacity=128)], []
    for number, capacity in enumerate((300, 200)):
        training = Training(indexes[-1], global_batch=6, seed=number + 5)
        states.append(training.state_at(3 + number))
        plan_packs(lengths, folder / "i", resume=(indexes[-1], states[-1]), capacity=capacity)
        indexes.append(open_index(folder / "i"))
    return indexes, states, lengths


def test_a_lineage_says_what_was_trained_on_where(tmp_path: Path) -> None:
    indexes, states, _ = lineage(tmp_path)
    trained: dict[int, list[tuple[str, int, int, int]]] = {}
    for index, state in zip(indexes, states, strict=False):
        training = Training(index, global_batch=6, seed=state["seed"])
        for step in range(state["position"] // 6):
            for pack in training.packs_of_step(step):
                for held in index.pack(pack).samples:
                    here = (index.id, step, pack, held.token_start)
                    trained.setdefault(held.sample_id, []).append(here)
    last = indexes[-1]
    of_both = [i for i, had in trained.items() if len({one[0] for one in had}) == 2]
    assert of_both, "a sample of which each ancestor has trained on a piece"
    for ident in [*of_both, *range(0, 600, 29)]:
        sample = only(last, sample_id=ident)
        had = [
            (before.snapshot_id, place.step, place.pack_id, place.token_start)
            for before in sample.before
            for place in before.places
        ]
        assert sorted(had, key=str) == sorted(trained.get(ident, []), key=str)
        assert bool(sample.places) != (
            sample.dropped is not None and sample.dropped.reason == "consumed"
        )
    told = trace_step(last, 0)
    assert [one.steps for one in told.ancestors] == [3, 4] and told.steps_before == 7


def test_an_ancestor_that_is_gone_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indexes, _, _ = lineage(tmp_path)
    path_of(indexes[0]).unlink()
    last = indexes[-1]
    found = trace_samples(last, sample_id=0)
    assert [one.missing is None for one in found.ancestors] == [False, True]
    assert main(["trace", last.path, "--sample-id", "0"]) == 0
    said = capsys.readouterr().err
    assert f"@{indexes[0].id[:12]} cannot be read, so what its 18 trained packs held" in said
    assert trace_step(last, 0).steps_before == 7


def test_a_state_gives_the_run_and_what_it_has_had(tmp_path: Path) -> None:
    index = planned(tmp_path)
    training = Training(index, global_batch=10, seed=4, epoch=3)
    state = training.state_at(2)
    step = trace_step(index, 1, state=state)
    assert [pack.pack_id for pack in step.packs] == training.packs_of_step(1)
    assert (step.seed, step.epoch, step.global_batch, step.consumed) == (4, 3, 10, True)
    assert not trace_step(index, 2, state=state).consumed
    had = {pack for step in range(2) for pack in training.packs_of_step(step)}
    for ident in range(0, 600, 41):
        [place] = only(index, sample_id=ident, state=state).places
        assert place.epoch == 3 and place.consumed == (place.pack_id in had)
    with pytest.raises(MismatchError, match="the state has seed 4, and 5 is asked for"):
        trace_step(index, 1, state=state, seed=5)
    with pytest.raises(MismatchError, match="name the snapshot"):
        trace_step(index, 1, state=state | {"snapshot_id": "f" * 32})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 10**6}, r"step 1000000 is outside \[0, "),
        ({"step": 0, "rank": 0}, "rank 0 of how many"),
        ({"step": 0, "rank": 4, "world_size": 4}, r"rank 4 is outside \[0, 4\)"),
        ({"step": 0, "world_size": 3}, "world_size 3 does not divide the 8 packs of a step"),
        ({"step": 0, "world_size": 3, "global_batch": 4}, "4 is not a positive multiple of world"),
        ({"step": 0, "global_batch": 10**6}, "exceeds the .* packs of an epoch"),
        ({"step": 0, "epoch": 1 << 63}, "epoch is 9223372036854775808"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PackidxError, match=words):
        trace_step(planned(tmp_path), **options)
