"""Two plans side by side: what is told is what going through both by hand finds."""

from __future__ import annotations

import json
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

from packidx import estimate_lengths, open_index, plan_packs
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


def rows_of(index: Index) -> list[dict[str, Any]]:
    epochs = index.packs(["epoch"])["epoch"].to_pylist()
    return [row | {"epoch": epochs[row["pack_id"]]} for row in index.samples().to_pylist()]


def names(index: Index, by_key: bool) -> dict[int, Name]:
    """What each sample is matched by."""
    rows = [*index.samples().to_pylist(), *index.dropped().to_pylist()]
    return {
        row["sample_id"]: (row["source"], row["key"]) if by_key else (row["sample_id"],)
        for row in rows
    }


def by_hand(a: Index, b: Index, by_key: bool) -> dict[str, Any]:
    """What `sample_diff` says, found one sample after another."""
    held, packs, homes, tokens, why = [], [], [], [], []
    for index in (a, b):
        name = names(index, by_key)
        rows = rows_of(index)
        of_pack: dict[int, set[Name]] = {}
        home: dict[Name, tuple[int, ...]] = {}
        total: Counter[Name] = Counter()
        for row in rows:
            mine = name[row["sample_id"]]
            of_pack.setdefault(row["pack_id"], set()).add(mine)
            place = (row["epoch"], row["copy"], row["token_start"], row["pack_id"])
            home[mine] = min(home.get(mine, place), place)
            if row["epoch"] == row["copy"] == 0:
                total[mine] += row["length"]
        held.append({name[row["sample_id"]] for row in rows})
        packs.append(of_pack)
        homes.append({mine: place[-1] for mine, place in home.items()})
        tokens.append(total)
        dropped = index.dropped().to_pylist()
        why.append({name[row["sample_id"]]: row["reason"] for row in dropped})
    both = held[0] & held[1]
    companies = [
        {
            mine: {frozenset(pack & both) for pack in of_pack.values() if mine in pack}
            for mine in both
        }
        for of_pack in packs
    ]
    return {
        "in_both": len(both),
        "gained_from": Counter(why[0].get(mine, "absent") for mine in held[1] - held[0]),
        "lost_to": Counter(why[1].get(mine, "absent") for mine in held[0] - held[1]),
        "moved": sum(companies[0][mine] != companies[1][mine] for mine in both),
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
        "epochs": st.integers(1, 2),
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
    assert samples["moved"] == back["moved"] and samples["tokens_differ"] == back["tokens_differ"]


def test_other_options_of_the_same_lengths(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet")
    a, b = (planned(lengths, tmp_path / "i", capacity=size) for size in (150, 300))
    found = diff(a, b)
    assert set(found["options"]) == {"capacity", "planned_capacity"}
    assert (found["options"]["capacity"]["a"], found["options"]["capacity"]["b"]) == (150, 300)
    assert found["lengths"] == {}
    samples = found["samples"]
    assert samples and samples["gained_from"] == {"too_long": a.snapshot.result.num_dropped}
    [example, *_] = samples["examples"]["gained"]
    long = a.dropped().to_pylist()[0]
    assert (example["key"], example["a"], example["b"]) == (long["key"], "too_long", "packed")
    assert found["dropped"]["too_long"]["b"] == 0 and found["dropped"]["too_long"]["a"] > 0
    assert found["counts"]["num_packs"]["a"] == a.num_packs
    tokens = Counter(
        {name: sum(r["length"] for r in rows_of(b) if r["source"] == name) for name in "abc"}
    )
    assert {name: each["tokens"]["b"] for name, each in found["sources"].items()} == tokens
    assert sum(each["share"]["b"] for each in found["sources"].values()) == pytest.approx(1)
    assert found["cost"]["a"] > 0 and found["cost"]["b"] > found["cost"]["a"]


def shard(path: Path, texts: list[str]) -> str:
    """Records with the answers `texts`, which are called by their place."""
    with open(path, "w") as file:
        for text in texts:
            turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return str(path)


def counted(shards: list[str], lengths: Path) -> Path:
    estimate_lengths(shards, lengths, workers=1)
    return lengths


def texts(number: int, first: int = 0) -> list[str]:
    return ["words " * (10 + at % 37) + str(at) for at in range(first, first + number)]


def test_shards_that_were_appended_move_nothing(tmp_path: Path) -> None:
    shards = [shard(tmp_path / "a.jsonl", texts(50))]
    a = planned(counted(shards, tmp_path / "l"), tmp_path / "i", window=1)
    shards.append(shard(tmp_path / "b.jsonl", texts(30, 50)))
    done = plan_packs(counted(shards, tmp_path / "l"), tmp_path / "i", append=a)
    b = open_index(f"{tmp_path}/i@{done.snapshot_id}")
    samples = check(a, b, "source and key")
    assert (samples["moved"], samples["gained"]) == (0, 30)
    assert samples["gained_from"] == {"absent": 30}


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


def test_pairs_have_one_key(tmp_path: Path) -> None:
    """Each side is matched with the same side, of dropped ones, too."""
    indexes = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open(folder / "pairs.jsonl", "w") as file:
            for at in reversed(range(30 + number)):
                sides = {"chosen": "yes " * (9 + 200 * (at == 7)), "rejected": "no " * (5 + at)}
                file.write(json.dumps({"id": f"p{at}", "prompt": "Is it?", **sides}) + "\n")
        estimate_lengths(str(folder / "pairs.jsonl"), folder / "l", pair="both", workers=1)
        indexes.append(planned(folder / "l", folder / "i"))
    assert all(index.snapshot.has_pairs for index in indexes)
    samples = told(*indexes)
    assert samples["matched_by"] == "source and key"
    assert (samples["in_both"], samples["gained"], samples["lost"], samples["tokens_differ"]) == (
        58,
        2,
        0,
        0,
    )
    assert samples["examples"]["moved"]
    assert all(e["sample_id"]["b"] == e["sample_id"]["a"] + 2 for e in samples["examples"]["moved"])


def test_the_same_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = write(tmp_path / "l.parquet")
    a, b = (planned(lengths, tmp_path / name) for name in "ab")
    assert main(["diff", a.path, b.path, "--exit-code"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the same plan: ") and out.count("\n") == 1
    assert main(["diff", a.path, b.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    planned(lengths, tmp_path / "b", capacity=300)
    assert main(["diff", a.path, b.path, "--exit-code"]) == 1
    assert main(["diff", a.path, b.path]) == 0
    assert main(["diff", a.path, str(tmp_path / "none")]) == 1
    assert "does not exist" in capsys.readouterr().err
