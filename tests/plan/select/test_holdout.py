"""A sample's side of the holdout: its own property."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from packidx.plan.select.eligible import holdout

NAMES = st.none() | st.sampled_from(["", "web", "code", "Ä"])
ROWS = st.lists(st.tuples(NAMES, st.none() | st.text(max_size=12)), max_size=30)
SHARES = st.fractions(0, 1, max_denominator=1000)


def sides(rows: list[tuple[str | None, str | None]], ids: list[int], share: Fraction) -> list[bool]:
    source = pa.array([name for name, _ in rows], pa.string())
    key = pa.array([key for _, key in rows], pa.string())
    return holdout(source, key, np.array(ids, np.int64), share).tolist()


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
        "web": holdout(pa.array(["web"] * number), keys, ids, Fraction(1, 10)),
        "code": holdout(pa.array(["code"] * number), keys, ids, Fraction(1, 10)),
        "no source": holdout(None, keys, ids, Fraction(1, 10)),
        "no key": holdout(pa.array(["web"] * number), None, ids, Fraction(1, 10)),
        "nothing": holdout(None, None, ids, Fraction(1, 10)),
    }
    for side in found.values():
        assert abs(side.sum() - number / 10) < 5 * (number * 0.09) ** 0.5
    together = found["web"] & found["code"]
    assert abs(together.sum() - number / 100) < 5 * (number * 0.0099) ** 0.5
    assert len({side.tobytes() for side in found.values()}) == len(found)


def test_sides_are_part_of_the_format() -> None:
    source, key = pa.array(["web"] * 64), pa.array(map(str, range(64)))
    found = holdout(source, key, np.arange(64), Fraction(1, 4))
    assert np.flatnonzero(found).tolist() == [12, 19, 28, 38, 45, 48, 60]
    numbered = holdout(None, None, np.arange(64), Fraction(1, 4))
    assert np.flatnonzero(numbered).tolist() == [11, 12, 15, 16, 18, 21, 22, 24, 47, 52, 54, 55, 60]
