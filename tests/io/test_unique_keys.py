"""YAML is text, numbers, booleans, lists and maps; aliases are followed, and bounded."""

from __future__ import annotations

import pytest
import yaml

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


@pytest.mark.parametrize("text", ["2026-01-02", "1:59:59", "-.inf", ".nan", "010", "1e-3", "0b1"])
def test_what_is_no_number_is_text(text: str) -> None:
    assert load_yaml(f"a: {text}") == {"a": text}


def test_numbers_booleans_and_null() -> None:
    text = "[1, -2, 1_000, 0x1F, 1.5, .5, 1.0e-05, true, No, on, null, ~, '1', !!str 3]"
    found = load_yaml(text)
    assert found == [1, -2, 1000, 31, 1.5, 0.5, 1e-05, True, False, True, None, None, "1", "3"]
    assert yaml.safe_load(text) == found


@pytest.mark.parametrize(
    "value",
    [
        *("!!bool x", "!!int x", "!!int ''", "!!float x", "!!timestamp x", "!!binary x"),
        *("!!set {b}", "!!map x", "!!python/object:os.system x", '"\\ud800"', '"\\0"', "9" * 5000),
    ],
)
def test_every_failure_names_the_line(value: str) -> None:
    for text in (f"k: 1\na: {value}\n", f"k: 1\n? {value}\n: 1\n"):
        with pytest.raises(ValueError, match="line 2, column") as caught:
            load_yaml(text)
        assert "\n" not in str(caught.value)
