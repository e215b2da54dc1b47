"""Which samples a plan has and how often: weights of sources, and what a holdout keeps."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import FormatError, OptionError
from packidx.format.lengths import Source
from packidx.format.manifest import Unfit, decode_json
from packidx.hashing import is_below_share
from packidx.plan.options import number_text, read_number
from packidx.plan.select.mixture import MAX_REPEATS, Mixture, SourceTotals, copies_of, sample_ratios
from packidx.plan.select.rules import is_held_out

WEB = SourceTotals(num_samples=100, num_tokens=5000)
CODE = SourceTotals(num_samples=50, num_tokens=20000)
TABLE: dict[str | None, SourceTotals] = {"code": CODE, "web": WEB}
NUMBERS = st.fractions(0, 300, max_denominator=10_000)


def test_by_repeats_a_weight_is_how_often_a_sample_is_seen() -> None:
    mixture = Mixture.parse(["web=2.5"])
    assert mixture.resolve(TABLE, {}) == {"code": 1, "web": Fraction(5, 2)}
    ratios = {"web": Fraction(9), "code": Fraction(1, 10)}
    assert mixture.resolve(TABLE, ratios) == {"code": Fraction(1, 10), "web": Fraction(5, 2)}
    assert Mixture.parse([]).resolve(TABLE, ratios) == ratios
    assert Mixture.parse(["web=0"]).resolve(TABLE | {None: WEB}, {})["web"] == 0
    assert Mixture.parse(["web=0"]).resolve(TABLE | {None: WEB}, {})[None] == 1


@given(st.lists(NUMBERS, min_size=2, max_size=2).filter(any))
def test_shares_make_an_epoch_as_large_as_without_a_mix(shares: list[Fraction]) -> None:
    weights = [f"{name}={share}%" for name, share in zip(("code", "web"), shares, strict=True)]
    resolved = Mixture.parse(weights).resolve(TABLE, {"web": Fraction(1, 2)})
    tokens = [CODE.num_tokens, WEB.num_tokens]
    got = [resolved[name] * amount for name, amount in zip(("code", "web"), tokens, strict=True)]
    total = tokens[0] + Fraction(tokens[1], 2)
    for amount, share, own in zip(got, shares, tokens, strict=True):
        exact = total * share / sum(shares)
        assert abs(amount - exact) <= Fraction(own, 2 * 10**9)  # nine decimals of a weight
        assert bool(amount) == bool(share) or exact < own / 10**9


def test_a_mixture_is_stated_exactly() -> None:
    mixture = Mixture.parse(["b=1/3", "a=x=0.10", "c=2e1"])
    assert mixture.weights == {"a=x": Fraction(1, 10), "b": Fraction(1, 3), "c": Fraction(20)}
    assert list(mixture.weights) == ["a=x", "b", "c"]


@given(st.fractions(0, 10**6))
def test_numbers_survive_their_text(number: Fraction) -> None:
    text = number_text(number)
    assert read_number(text) == number or len(text) > 40
    assert number_text(Fraction(12345, 1000)) == "12.345" and number_text(Fraction(0)) == "0"


MALFORMED = [
    (["web"], "mix has 'web': write source=weight, such as web=2"),
    (["=2"], "mix has '=2': write source=weight"),
    (
        ["web=many"],
        "mix gives source 'web' weight 'many', which is not a number: write one such as",
    ),
    (["web="], "weight '', which is not a number"),
    (["web=nan"], "weight 'nan', which is not a number"),
    (["web=inf"], "weight 'inf', which is not a number"),
    (["web=1/0"], "weight '1/0', which is not a number"),
    (["web=1e999999999"], "weight '1e999999999', which is not a number"),
    (["web=-0.5"], "mix gives source 'web' weight -0.5: it must be 0 or more"),
    (["web=1", "web=2"], "mix names source 'web' twice: give it one weight"),
    (["web=1", "code=30%"], "'web=1', which is none: give all sources a share, or none"),
    (["web=0%", "code=0.0%"], "mix shares out no tokens"),
    (["web=70000"], f"mix repeats source 'web' 70000 times: {MAX_REPEATS} are the most"),
]


@pytest.mark.parametrize(("texts", "words"), MALFORMED)
def test_malformed_weights_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(OptionError) as error:
        Mixture.parse(texts)
    assert words in str(error.value)


IMPOSSIBLE: list[tuple[list[str], dict[Any, SourceTotals], str]] = [
    (["cod=1"], TABLE, "no such source: choose from code, web"),
    (["web=0", "code=0"], TABLE, "mix gives every source weight 0: keep one"),
    (["web=1"], {None: WEB}, "as they have no column `source`"),
    (["web=1%"], TABLE, "leaves out source 'code': give every source a share (code, web"),
    (["web=1%"], {None: CODE, "web": WEB}, "leaves out source None"),
    (["web=1%", "code=1%"], {"web": WEB, "code": SourceTotals()}, "which has none"),
    (["web=1%", "code=99%"], {"web": SourceTotals(9, 10**9), "code": SourceTotals(1, 1)},
     "mix repeats source 'code' 9.9e+08 times"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "totals", "words"), IMPOSSIBLE)
def test_impossible_mixtures_are_refused(
    texts: list[str], totals: dict[str | None, SourceTotals], words: str
) -> None:
    mixture = Mixture.parse(texts)
    with pytest.raises(OptionError) as error:
        mixture.resolve(totals, {})
    assert words in str(error.value) and "\n" not in str(error.value)


def test_sample_ratios_come_from_the_lengths() -> None:
    ratios = with_layouts(a={"sample_ratio": 0.1}, b={"tags": {}}, c=None, d={"sample_ratio": 2})
    assert sample_ratios(ratios.sources) == {"a": Fraction(1, 10), "d": 2}
    assert sample_ratios(()) == {}
    with pytest.raises(FormatError, match="'a' has sample_ratio"):
        sample_ratios(with_layouts(a={"sample_ratio": 1e9}).sources)
    for bad in (-1, float("nan"), "2", True):
        with pytest.raises(Unfit, match="sample_ratio"):
            with_layouts(a={"sample_ratio": bad})


def with_layouts(**layouts: dict[str, Any] | None) -> Any:
    """What a lengths manifest says of sources with these layouts."""
    counts = {"num_samples": 1, "num_rejected": 0, "num_tokens": 1}
    sources = [
        {"name": name, "media_root": None, **counts}
        | ({} if layout is None else {"layout": layout})
        for name, layout in layouts.items()
    ]
    return SimpleNamespace(sources=[decode_json(Source, source) for source in sources])


@given(NUMBERS, st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_copies_are_the_weight_and_one_more_below_its_fraction(
    weight: Fraction, hashes: list[int]
) -> None:
    whole = weight.numerator // weight.denominator
    want = [whole + (Fraction(one, 1 << 64) < weight - whole) for one in hashes]
    assert copies_of(weight, np.array(hashes, np.uint64)).tolist() == want


def test_a_threshold_is_exact_to_the_last_bit() -> None:
    top = (1 << 64) - 1
    hashes = np.array([0, 1, top - 1, top], np.uint64)
    assert is_below_share(hashes, Fraction(0)).tolist() == [False] * 4
    assert is_below_share(hashes, Fraction(1)).tolist() == [True] * 4
    assert is_below_share(hashes, Fraction(1, 1 << 64)).tolist() == [True, False, False, False]
    assert is_below_share(hashes, Fraction(3, 1 << 65)).tolist() == [True, True, False, False]
    assert is_below_share(hashes, Fraction(top, 1 << 64)).tolist() == [True, True, True, False]
    assert is_below_share(hashes, Fraction(2 * top + 1, 1 << 65)).tolist() == [True] * 4


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
