"""Shares and weights without rounding: from the decimals that a user writes to a comparison."""

from __future__ import annotations

import re
from fractions import Fraction

from packidx.errors import OptionError

UNITS = ("repeats", "samples", "tokens", "label_tokens")
"""What weights may be: repeats of each sample, or shares of the epoch in one of three units."""

DECIMALS = 9
"""Of a number that is computed and not stated by the user."""

_NUMBER = re.compile(r"-?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?|\d+/\d+)", re.ASCII)
_MAX_DIGITS = 40  # and two of an exponent: longer ones are slow to compute with, and slips


def read_number(text: str) -> Fraction | None:
    """The number that `text` states, such as 2, 0.5, 1e-3 or 1/3, exactly; None if it is none."""
    text = text.strip()
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def number_text(number: Fraction) -> str:
    """`number`, 0 or more, as its shortest exact decimal, else as p/q; `read_number` takes both."""
    for digits in range(DECIMALS + 1):
        scaled = number * 10**digits
        if scaled.denominator == 1:
            integer, decimals = divmod(scaled.numerator, 10**digits)
            return f"{integer}.{decimals:0{digits}d}" if digits else f"{integer}"
    return str(number)


def rounded(number: Fraction) -> Fraction:
    """The nearest number with `DECIMALS` decimals, half to even."""
    return Fraction(round(number * 10**DECIMALS), 10**DECIMALS)


def parse_share(text: str) -> Fraction:
    """The share that is to be held out, exactly as it is written: ``'0.01'`` is 1/100.

    Raises:
        OptionError: it is no number, below 0, or leaves nothing to train on.
    """
    share = read_number(text)
    if share is None or not 0 <= share < 1:
        raise OptionError(
            f"holdout is {text!r:.40}: give a share of the samples, from 0 to below 1"
        )
    return share
