"""Ranges of files, and keys of options that are given twice."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Reads

from packidx.errors import SourceError
from packidx.io.option_files import load_document
from packidx.io.ranges import Extent, blocks_of

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("ranges") / "x"
    place.write_bytes(DATA)
    return str(place)


@given(
    st.lists(
        st.tuples(st.integers(-300, 9000), st.sampled_from([0, 1, 2]), st.integers(-1, 3000)),
        max_size=20,
    ),
    st.sampled_from([None, 1, 100, 3000]),
    st.sampled_from([0, 3000]),
    st.sampled_from([(0, len(DATA)), (77, 5000), (3000, 0)]),
)
def test_an_extent_is_a_file(
    path: str,
    steps: list[tuple[int, int, int]],
    block: int | None,
    head: int,
    place: tuple[int, int],
) -> None:
    start, nbytes = place
    blocks = None
    if block is not None:
        blocks = blocks_of(path, start + nbytes, block, DATA[:head])
    extent = pickle.loads(pickle.dumps(Extent(path, start, nbytes, "a", blocks)))
    model = io.BytesIO(DATA[start : start + nbytes])
    with extent.open() as file:
        for offset, whence, size in steps:
            offset = max(offset, 0 if whence == 0 else -model.tell() if whence == 1 else -nbytes)
            assert file.seek(offset, whence) == model.seek(offset, whence)
            assert file.read(size) == model.read(size)
    assert extent.read() == extent.peek(0, nbytes) == model.getvalue()


def test_a_block_is_read_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    blocks = blocks_of(path, len(DATA), 1000, DATA[:1000])
    with Extent(path, 500, 9000, blocks=blocks).open() as file:
        for at in (0, 100, 600, 700, 3000, 520, 0):
            assert file.seek(at) == at
            assert file.read(20) == DATA[500 + at : 520 + at]
    assert reads.places == [(1000, 1000), (3000, 1000)]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    extent = Extent(str(tmp_path / "none"), 0, 10**6)
    for read in (extent.read, extent.open().read):
        with pytest.raises(SourceError, match="cannot read .*none"):
            read()


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
