"""YAML and JSON are plain data in which no key stands twice."""

from __future__ import annotations

from typing import Any

import pytest

from packidx.io.option_files import dump_yaml, load_document

BAD = {
    "a: 1\nb: 2\na: 3": "line 3, column 1: found duplicate key",
    "k: {a: 1,\n  a: 1}": "line 2, column 3: found duplicate key",
    "k: 1\na: [": "line 2, column",
    "k: 1\na: !!python/object:os.system x": "line 2, column 4: could not determine a constructor",
    "k: 1\na: !foo 3": "line 2, column 4: could not determine a constructor",
    "k: 1\n---\nk: 2": "line 2, column 1: but found another document",
    "a: \x01": "special characters",
    f"a: {'9' * 5000}": "4300 digits",
    f"a: {'[' * 3000}": "recursion",
}


@pytest.mark.parametrize("text", BAD)
def test_yaml_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=BAD[text]) as caught:
        load_document("x.yaml", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"a": 1, "b": {"c": 1, "c": 1}}', '{"a": NaN}', "[" * 3000, "{"])
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="stands twice|not a number|nested too deeply|line 1"):
        load_document("x.json", text.encode())


def test_scalars_anchors_and_merges() -> None:
    text = "a: &a {x: 1, y: [no, 010, 1e-3, 0x1F, true, null, 'on']}\nb: {<<: *a, x: 4}\nc: [*a]"
    values: dict[str, Any] = {"x": 1, "y": ["no", 10, 0.001, 31, True, None, "on"]}
    assert load_document("x.yaml", text) == {"a": values, "b": {**values, "x": 4}, "c": [values]}


def test_what_is_written_reads_as_the_same() -> None:
    value = {"b": "1e-3", "a": ["no", "2026-01-02", "x: y", "é\n", "", 1.5, {}], "l": "ab " * 200}
    assert load_document("x.yaml", dump_yaml(value)) == value
    assert list(load_document("x.yaml", dump_yaml(value))) == ["b", "a", "l"]
