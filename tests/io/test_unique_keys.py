"""Aliases of YAML: followed, and bounded in all that they stand for together."""

from __future__ import annotations

import pytest

from packidx.io.unique_keys import load_yaml

NESTED = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
MERGED = [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40)]
BOMBS = {
    "lists": "\n".join(["a0: &a0 [x, y]", *NESTED]),
    "merged": "\n".join(["a0: &a0 {k: 1}", *MERGED]),
    "a long text": f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20)}]",
    "itself": "&a [*a]",
    "itself in a mapping": "x: &x {y: *x}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_aliases_without_end_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"its aliases \(\*NAME\) stand for over 1,000,000 values"):
        load_yaml(BOMBS[name])


def test_others_are_followed() -> None:
    text = "a: &a {x: 1, y: [2, 3]}\nb: {<<: *a, x: 4}\nc: [*a, *a]"
    value = {"x": 1, "y": [2, 3]}
    assert load_yaml(text) == {"a": value, "b": {**value, "x": 4}, "c": [value, value]}
