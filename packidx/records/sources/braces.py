"""Brace patterns of shard lists (``s-{000..012}.tar``), expanded as Energon does, but bounded.

Energon takes the package `braceexpand`, which makes all names of a range before it gives the first:
so they are counted beforehand.
"""

from __future__ import annotations

import re

import braceexpand

MAX_NAMES = 1_000_000
"""Names that a pattern, and all patterns of a list together, may stand for."""

_NUMBERS = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")  # as the package has them
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")


def expanded(pattern: str) -> list[str]:
    """The names that a pattern stands for.

    Raises:
        ValueError: its braces do not match, or the names are over `MAX_NAMES`.
    """
    try:
        number = num_names(pattern)
        names = list(braceexpand.braceexpand(pattern)) if number <= MAX_NAMES else []
    except ValueError:  # of the package, or of Python for a number of thousands of digits
        raise ValueError("its braces make no sense") from None
    except RecursionError:
        raise ValueError("its braces are nested too deeply") from None
    if number > MAX_NAMES:
        raise ValueError(f"it stands for over {MAX_NAMES:,} names")
    return names


def num_names(pattern: str) -> int:
    """How many names a pattern stands for."""
    total, depth, start, at = 1, 0, 0, 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "{":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif pattern[at] == "}":
            depth -= 1
            if depth == 0:
                total *= _num_alternatives(pattern[start:at])
        at += 1
    return total


def _num_alternatives(inside: str) -> int:
    if (numbers := _NUMBERS.match(inside)) is not None:
        return _num_steps(int(numbers[1]), int(numbers[2]), numbers[3])
    if (letters := _LETTERS.match(inside)) is not None:
        first, last = map(braceexpand.alphabet.index, letters.group(1, 2))
        return _num_steps(first, last, letters[3])
    return sum(map(num_names, _split(inside)))


def _num_steps(first: int, last: int, step: str | None) -> int:
    return abs(last - first) // (int(step or 1) or 1) + 1


def _split(inside: str) -> list[str]:
    """`inside` at its commas, without those within braces of their own."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(inside):
        if inside[at] == "\\":
            at += 1
        elif inside[at] in "{}":
            depth += 1 if inside[at] == "{" else -1
        elif inside[at] == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
        at += 1
    return [*parts, inside[start:]]
