"""Windows onto files: what was read is kept, and what is near is read at once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_reads import Reads

from packidx.errors import SourceError
from packidx.io import ranges
from packidx.io.ranges import Extent, ReadAhead

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("window") / "x"
    place.write_bytes(DATA)
    return str(place)


@given(
    st.lists(st.tuples(st.integers(0, len(DATA) + 9), st.integers(0, 3000)), max_size=20),
    st.sampled_from([1, 100, 3000]),
    st.sampled_from([0, 50, 5000]),
    st.sampled_from([0, 300]),
    st.sampled_from([len(DATA), 5000]),
)
def test_a_window_gives_the_files_bytes(
    path: str, places: list[tuple[int, int]], block: int, gap: int, head: int, end: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_KEPT", 2000)
        patch.setattr(ranges, "_MOST", 700)
        patch.setattr(ranges, "_LEAD", 20)
        window = ReadAhead(path, end, block, gap, DATA[:head])
        for offset, nbytes in places:
            expected = DATA[offset : max(offset, min(end, offset + nbytes))]
            assert window.read(offset, nbytes) == expected
        assert pickle.loads(pickle.dumps(window)).read(0, 9) == DATA[:9]


def test_what_was_read_is_not_read_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_LEAD", 10)
    reads = Reads(monkeypatch)
    window = ReadAhead(path, len(DATA), 500, 200)
    window.read(0, 100)
    window.read(90, 300)
    assert reads.places == [(0, 500)]
    window.read(600, 10)  # near: read on to, twice as much
    assert reads.places[1:] == [(500, 1000)]
    window.read(5000, 10)  # far: a small block that begins a little before
    assert reads.places[2:] == [(4990, 500)]
    assert window.read(4992, 8) == DATA[4992:5000]
    window.read(300, 1100)
    assert len(reads.places) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    extent = Extent(ReadAhead(str(tmp_path / "none"), 10**6), 0, 10**6)
    with pytest.raises(SourceError, match="cannot read .*none"):
        extent.read()
