"""`diff`: two plans side by side; `trace`: where samples are and why they are dropped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.errors import NotFoundInIndex, OptionError, PackidxError
from packidx.index import Index
from packidx.inspect import trace
from packidx.inspect.diff import diff
from packidx.torch import PackSampler

Name = tuple[Any, ...]


def write(path: Path, n: int = 300, first: int = 0, seed: int = 0, **columns: Any) -> Path:
    """Samples `first` to `first` + `n` - 1 by key, each of a length of its own."""
    numbers = range(first, first + n)
    lengths = [5 + (at * 7919 + seed) % 190 for at in numbers]
    table = {
        "length": lengths,
        "source": [("a", "b", "c")[at % 3] for at in numbers],
        "key": [f"k{at}" for at in numbers],
    }
    pq.write_table(pa.table(table | columns), path)
    return path


def planned(lengths: Path, index: Path, **options: Any) -> Index:
    done = plan_packs(lengths, index, **{"capacity": 200} | options)
    return open_index(f"{index}@{done.snapshot_id}")


def names(index: Index, by_key: bool) -> dict[int, Name]:
    """What each sample is matched by."""
    rows = [*index.samples().to_pylist(), *index.dropped().to_pylist()]
    return {
        row["sample_id"]: (row["source"], row["key"]) if by_key else (row["sample_id"],)
        for row in rows
    }


def by_hand(a: Index, b: Index, by_key: bool) -> dict[str, Any]:
    """What `sample_diff` says, found one sample after another."""
    held, tokens, why = [], [], []
    for index in (a, b):
        name = names(index, by_key)
        total: Counter[Name] = Counter()
        for row in index.samples().to_pylist():
            total[name[row["sample_id"]]] += row["length"]
        held.append(set(total))
        tokens.append(total)
        dropped = index.dropped().to_pylist()
        why.append({name[row["sample_id"]]: row["reason"] for row in dropped})
    both = held[0] & held[1]
    return {
        "in_both": len(both),
        "gained_from": Counter(why[0].get(mine, "absent") for mine in held[1] - held[0]),
        "lost_to": Counter(why[1].get(mine, "absent") for mine in held[0] - held[1]),
        "tokens_differ": sum(tokens[0][mine] != tokens[1][mine] for mine in both),
    }


def told(a: Index, b: Index) -> dict[str, Any]:
    samples: dict[str, Any] = diff(a, b)["samples"]
    assert samples["gained"] == sum(samples["gained_from"].values())
    assert samples["lost"] == sum(samples["lost_to"].values())
    return samples


def check(a: Index, b: Index, matched_by: str) -> dict[str, Any]:
    samples = told(a, b)
    expected = by_hand(a, b, by_key=matched_by == "source and key")
    assert samples["matched_by"] == matched_by
    assert {name: samples[name] for name in expected} == expected
    return samples


plans = st.fixed_dictionaries(
    {"capacity": st.sampled_from([150, 200, 390])},
    optional={
        "on_long": st.sampled_from(["split", "truncate", "drop"]),
        "mix": st.sampled_from([("a=2",), ("b=0",), ("a=1.5", "c=0.5")]),
        "seed": st.integers(0, 2),
        "max_samples": st.integers(1, 4),
        "holdout": st.just("0.1"),
    },
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans, plans, st.integers(0, 40), st.integers(0, 1))
def test_what_is_told_is_what_is_found_by_hand(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], shifted: int, seed: int
) -> None:
    first = write(tmp_path / "one.parquet", 90)
    second = write(tmp_path / "two.parquet", 90, shifted, seed)
    a, b = planned(first, tmp_path / "a", **one), planned(second, tmp_path / "b", **two)
    if a.id == b.id:
        assert diff(a, b)["same"]
        return
    same_lengths = not shifted and not seed
    samples = check(a, b, "sample_id" if same_lengths else "source and key")
    back = told(b, a)
    assert (samples["gained"], samples["lost"]) == (back["lost"], back["gained"])
    assert samples["tokens_differ"] == back["tokens_differ"]


def test_other_options_of_the_same_lengths(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet")
    a, b = (planned(lengths, tmp_path / "i", capacity=size) for size in (150, 300))
    found = diff(a, b)
    assert set(found["options"]) == {"capacity", "planned_capacity"}
    assert (found["options"]["capacity"]["a"], found["options"]["capacity"]["b"]) == (150, 300)
    assert found["lengths"] == {}
    samples = found["samples"]
    assert samples and samples["gained_from"] == {"too_long": a.snapshot.result.num_dropped}
    assert found["dropped"]["too_long"]["b"] == 0 and found["dropped"]["too_long"]["a"] > 0
    assert found["counts"]["num_packs"]["a"] == a.num_packs
    tokens = Counter({row["source"]: 0 for row in b.samples().to_pylist()})
    for row in b.samples().to_pylist():
        tokens[row["source"]] += row["length"]
    assert {name: each["tokens"]["b"] for name, each in found["sources"].items()} == tokens


def test_samples_that_nothing_tells_apart_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number in range(2):
        lengths = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"length": np.arange(5, 95) + number}), lengths)
        paths.append(planned(lengths, tmp_path / str(number)))
    assert diff(*paths)["samples"] is None
    assert main(["diff", paths[0].path, paths[1].path]) == 0
    assert "samples are not compared: the lengths differ" in capsys.readouterr().out


CAPACITY = 256


def write_photos(path: Path, n: int = 600, **columns: Any) -> Path:
    table = {
        "length": np.random.default_rng(n).integers(5, 250, n),
        "source": [("a", "b")[at % 2] for at in range(n)],
        "key": [f"photo-{at:05}" for at in range(n)],
    }
    pq.write_table(pa.table(table | columns), path)
    return path


def traced_plan(folder: Path, lengths: Path | None = None, **options: Any) -> Index:
    lengths = lengths or write_photos(folder / "l.parquet")
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
    [place] = trace_samples(index, **options).places
    return place


def test_a_key_leads_to_its_pack_and_step(tmp_path: Path) -> None:
    index = traced_plan(tmp_path)
    place = only(index, key="photo-00017", world_size=4)
    assert (place.sample_id, place.source) == (17, "b")
    held = index.pack(place.pack_id).samples[place.position]
    assert (held.sample_id, held.length) == (17, place.length)
    assert place.step is not None
    step = trace_step(index, place.step, rank=place.rank, world_size=4)
    [pack] = [pack for pack in step.packs if pack.pack_id == place.pack_id]
    assert pack.micro_step == place.micro_step
    assert pack.samples[place.position].key == "photo-00017"
    assert only(index, sample_id=17, world_size=4) == place


def test_a_key_of_several_sources_and_samples(tmp_path: Path) -> None:
    keys = [f"k{at // 2}" for at in range(600)]
    index = traced_plan(tmp_path, write_photos(tmp_path / "l.parquet", key=keys))
    both = trace_samples(index, key="k7").places
    assert {(place.sample_id, place.source) for place in both} == {(14, "a"), (15, "b")}
    assert only(index, key="k7", source="b").sample_id == 15
    with pytest.raises(NotFoundInIndex, match="has no key 'k7', source 'c'"):
        trace_samples(index, key="k7", source="c")
    with pytest.raises(OptionError, match="either a key or a sample id"):
        trace_samples(index, key="k7", sample_id=3)


def test_what_is_dropped_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = np.full(600, 100)
    lengths[[3, 8]] = [999, 0]
    table = write_photos(
        tmp_path / "l.parquet",
        length=lengths,
        status=["rejected" if at == 5 else "ok" for at in range(600)],
        reason=["missing_media" if at == 5 else None for at in range(600)],
        detail=["no file a.png" if at == 5 else None for at in range(600)],
    )
    index = traced_plan(tmp_path, table)
    traced = {at: trace_samples(index, sample_id=at) for at in (3, 5, 8)}
    assert not any(each.places for each in traced.values())
    why = {at: [(row.reason, row.detail) for row in each.dropped] for at, each in traced.items()}
    assert why[3] == [("too_long", f"999 tokens > {CAPACITY}")]
    assert why[5] == [("rejected", "missing_media: no file a.png")]
    assert why[8][0][0] == "empty"
    assert main(["trace", index.path, "--sample-id", "5"]) == 0
    assert "rejected: missing_media: no file a.png" in capsys.readouterr().out


def test_the_command_prints_steps_and_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = traced_plan(tmp_path)
    place = only(index, key="photo-00017", world_size=4)
    command = ["trace", index.path, "--world-size", "4"]
    assert main([*command, "--key", "photo-00017"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "photo-00017" in line][1:]
    assert line.split()[:4] == [str(n) for n in (0, place.step, place.micro_step, place.rank)]
    assert main([*command, "--step", str(place.step), "--rank", str(place.rank)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "photo-00017" in line]
    cells = (place.step, place.micro_step, place.rank, place.pack_id, place.position, 17)
    assert line.split()[:6] == [str(n) for n in cells]


def test_packs_that_an_epoch_leaves_out(tmp_path: Path) -> None:
    index = traced_plan(tmp_path)
    left = index.num_packs % 7
    assert left
    training = PackSampler(index, global_batch=7)
    steps = [training.packs_of_step(step) for step in range(training.num_steps)]
    [first, *_] = {*range(index.num_packs)} - {pack for step in steps for pack in step}
    ident = index.pack(first).samples[0].sample_id
    place = only(index, sample_id=ident, global_batch=7, world_size=7)
    assert place.step is place.rank is None
    assert place.order_position >= index.num_packs - left


def test_an_epoch_with_its_seed_and_global_batch(tmp_path: Path) -> None:
    index = traced_plan(tmp_path)
    run = {"global_batch": 10, "seed": 4, "epoch": 3}
    training = PackSampler(index, **run)
    step = trace_step(index, 1, **run)
    assert [pack.pack_id for pack in step.packs] == training.packs_of_step(1)
    assert (step.seed, step.epoch, step.global_batch) == (4, 3, 10)
    place = only(index, sample_id=step.packs[0].samples[0].sample_id, **run)
    assert (place.epoch, place.step, place.pack_id) == (3, 1, step.packs[0].pack_id)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 10**6}, r"step 1000000 is outside \[0, "),
        ({"step": 0, "rank": 0}, "rank needs world_size"),
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
        trace_step(traced_plan(tmp_path), **options)
