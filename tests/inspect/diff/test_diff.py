"""Two plans side by side: what is told is what going through both by hand finds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.index import Index
from packidx.inspect.diff import diff

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
