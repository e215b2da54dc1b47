"""Extents: files within files, read directly or by blocks that are kept."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_reads import Reads

from packidx.errors import SourceError
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
