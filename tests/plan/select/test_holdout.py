"""Samples that are left out: by a holdout, and by draws that stay."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx import estimate_lengths, open_index, plan_packs
from packidx.plan.select.rules import is_held_out

NAMES = st.none() | st.sampled_from(["", "web", "code", "Ä"])
ROWS = st.lists(st.tuples(NAMES, st.none() | st.text(max_size=12)), max_size=30)
SHARES = st.fractions(0, 1, max_denominator=1000)


def sides(rows: list[tuple[str | None, str | None]], ids: list[int], share: Fraction) -> list[bool]:
    source = pa.array([name for name, _ in rows], pa.string())
    key = pa.array([key for _, key in rows], pa.string())
    return is_held_out(source, key, np.array(ids, np.int64), share).tolist()


@given(ROWS, SHARES, st.data())
def test_a_sample_stays_on_its_side(
    rows: list[tuple[str | None, str | None]], share: Fraction, data: st.DataObject
) -> None:
    ids = list(range(len(rows)))
    found = sides(rows, ids, share)
    order = data.draw(st.permutations(ids))
    assert sides([rows[at] for at in order], order, share) == [found[at] for at in order]
    for at in ids:
        # A key stands for the sample in any place; without one its place does.
        number = at if rows[at][1] is None else at + 1000
        assert sides([rows[at]], [number], share) == [found[at]]


@given(ROWS, SHARES, SHARES)
def test_a_larger_share_contains_the_smaller_one(
    rows: list[tuple[str | None, str | None]], one: Fraction, other: Fraction
) -> None:
    ids = list(range(len(rows)))
    small, large = (np.array(sides(rows, ids, share), bool) for share in sorted([one, other]))
    assert not (small & ~large).any()
    assert not any(sides(rows, ids, Fraction(0))) and all(sides(rows, ids, Fraction(1)))


def test_the_share_is_met_in_every_source_and_sides_are_independent() -> None:
    number = 50_000
    ids = np.arange(number)
    keys = pa.array([f"{at}.jpg" for at in range(number)])
    found = {
        "web": is_held_out(pa.array(["web"] * number), keys, ids, Fraction(1, 10)),
        "code": is_held_out(pa.array(["code"] * number), keys, ids, Fraction(1, 10)),
        "no source": is_held_out(None, keys, ids, Fraction(1, 10)),
        "no key": is_held_out(pa.array(["web"] * number), None, ids, Fraction(1, 10)),
        "nothing": is_held_out(None, None, ids, Fraction(1, 10)),
    }
    for side in found.values():
        assert abs(side.sum() - number / 10) < 5 * (number * 0.09) ** 0.5
    together = found["web"] & found["code"]
    assert abs(together.sum() - number / 100) < 5 * (number * 0.0099) ** 0.5
    assert len({side.tobytes() for side in found.values()}) == len(found)


def test_sides_are_part_of_the_format() -> None:
    source, key = pa.array(["web"] * 64), pa.array(map(str, range(64)))
    found = is_held_out(source, key, np.arange(64), Fraction(1, 4))
    assert np.flatnonzero(found).tolist() == [12, 19, 28, 38, 45, 48, 60]
    numbered = is_held_out(None, None, np.arange(64), Fraction(1, 4))
    assert np.flatnonzero(numbered).tolist() == [11, 12, 15, 16, 18, 21, 22, 24, 47, 52, 54, 55, 60]


DRAWS: dict[str, dict[str, Any]] = {
    "weight": {"mix": ("b=0.5",)},
    "copies": {"mix": ("b=2.5",)},
    "holdout": {"holdout": "0.3"},
    "all of it": {"mix": ("b=1.5",), "holdout": "0.2", "window": 2},
}


def write(path: Path, number: int, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(number):
        record: dict[str, Any] = {"id": f"{path}-{n}"} if kind == "named" else {}
        said = {"role": "assistant", "content": f"{n} " + "word " * (n % 9)}
        record["messages"] = [{"role": "user", "content": path.name}, said]
        rows.append(json.dumps(record))
    path.write_text("\n".join(rows) + "\n")


CHANGES: dict[str, Callable[[Path, str], Any]] = {
    "records in another source": lambda data, kind: write(data / "a/own.jsonl", 60, kind),
    "a file of the same name in another": lambda data, kind: write(data / "a/data.jsonl", 7, kind),
    "a shard before all others": lambda data, kind: write(data / "a/0.jsonl", 5, kind),
    "another source": lambda data, kind: write(data / "0/data.jsonl", 11, kind),
    "a source less": lambda data, kind: shutil.rmtree(data / "a"),
    "records at the end of it": lambda data, kind: write(data / "b/data.jsonl", 80, kind),
    "a shard at the end of it": lambda data, kind: write(data / "b/z/data.jsonl", 20, kind),
}


def drawn(data: Path, options: dict[str, Any]) -> dict[tuple[str, int], int]:
    """How often an epoch has samples of each record of the source b, by its shard and row."""
    out = data.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    sources = [f"{path.name}={path}" for path in sorted(data.iterdir())]
    estimate_lengths(sources, out / "l", workers=1)
    plan_packs(out / "l", out / "i", capacity=512, **options)
    index = open_index(out / "i")
    uris = [shard.uri for shard in index.snapshot.shards]
    rows = [row for row in index.samples().to_pylist() if row["source"] == "b"]
    return Counter((uris[row["shard"]], row["row"]) for row in rows)


@pytest.mark.parametrize(
    ("draw", "kind"),
    [*((draw, "unnamed") for draw in DRAWS), ("all of it", "named")],
)
def test_other_sources_exchange_no_sample(tmp_path: Path, draw: str, kind: str) -> None:
    data = tmp_path / "data"
    write(data / "a/own.jsonl", 40, kind)
    write(data / "b/data.jsonl", 60, kind)
    write(data / "b/more.jsonl", 60, kind)
    had = {(str(data / f"b/{name}.jsonl"), n) for name in ("data", "more") for n in range(60)}
    before = drawn(data, DRAWS[draw])
    assert 30 < len(before) <= 120
    for change, apply in CHANGES.items():  # one after the other
        apply(data, kind)
        after = drawn(data, DRAWS[draw])
        kept = {place: number for place, number in after.items() if place in had}
        assert kept == before, change
    assert len(after) > len(before)
