"""Keys set in JSON text: the value is right, and every other byte is the old one."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.precompute.text import set_keys

VALUES = {"_text_tokens": 12, "mm_inputs_meta": {"images_meta": [{"n_tokens": 4}]}}
ADDED = '"_text_tokens":12,"mm_inputs_meta":{"images_meta":[{"n_tokens":4}]}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{}", "{" + ADDED + "}"),
        ("{ }", "{" + ADDED + " }"),
        ('{"a":1}', '{"a":1,' + ADDED + "}"),
        ('{"a": "}"}', '{"a": "}", ' + ADDED + "}"),
        ('  {"a":[{}]} \t', '  {"a":[{}],' + ADDED + "} \t"),
        ('{"a":1 }', '{"a":1,' + ADDED + " }"),
    ],
)
def test_new_keys_go_to_the_end(line: str, expected: str) -> None:
    assert set_keys(line.encode(), VALUES).decode() == expected


def test_old_values_are_replaced_where_they_stand() -> None:
    line = '{"_text_tokens" : 3 ,"a":{"_text_tokens":1,"mm_inputs_meta":2}, "t":"_text_tokens"}'
    found = set_keys(line.encode(), VALUES).decode()
    assert found == (
        '{"_text_tokens" : 12 ,"a":{"_text_tokens":1,"mm_inputs_meta":2}, "t":"_text_tokens",'
        '"mm_inputs_meta":{"images_meta":[{"n_tokens":4}]}}'
    )
    long = b'{"n":' + b"9" * 5000 + b',"_text_tokens":1}'
    assert set_keys(long, {"_text_tokens": 5}) == long.replace(b":1}", b":5}")
    twice = set_keys(b'{"_text_tokens":1,"_text_tokens":"x"}', {"_text_tokens": 5})
    assert twice == b'{"_text_tokens":5,"_text_tokens":5}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["a", "_text_tokens", "mm_inputs_meta", "ü", '"'])


@given(record=st.dictionaries(KEYS, JSON), compact=st.booleans(), ascii_only=st.booleans())
def test_only_the_keys_change(record: dict[str, Any], compact: bool, ascii_only: bool) -> None:
    separators = (",", ":") if compact else None
    line = json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode()
    found = set_keys(line, VALUES)
    assert orjson.loads(found) == {**record, **VALUES}
    assert set_keys(found, VALUES) == found
    kept = {key: value for key, value in record.items() if key not in VALUES}
    plain = json.dumps(kept, ensure_ascii=ascii_only, separators=separators).encode()
    if len(kept) == len(record):
        assert found.startswith(plain[:-1])
