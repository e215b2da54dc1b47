"""Weights of sources: what is asked for, and the copies that come of it."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.errors import FormatError, OptionError
from packidx.format.lengths import Source
from packidx.format.manifest import Unfit, decode_json
from packidx.hashing import below
from packidx.plan.options import number_text, read_number
from packidx.plan.select.mixture import MAX_REPEATS, Mixture, SourceTotals, copies_of, sample_ratios

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
    assert below(hashes, Fraction(0)).tolist() == [False] * 4
    assert below(hashes, Fraction(1)).tolist() == [True] * 4
    assert below(hashes, Fraction(1, 1 << 64)).tolist() == [True, False, False, False]
    assert below(hashes, Fraction(3, 1 << 65)).tolist() == [True, True, False, False]
    assert below(hashes, Fraction(top, 1 << 64)).tolist() == [True, True, True, False]
    assert below(hashes, Fraction(2 * top + 1, 1 << 65)).tolist() == [True] * 4
