"""An index and a plan tell what they are, whatever is in their names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx import open_index, plan_packs
from packidx.index import Index

HOSTILE = "<script>alert('1')</script>&\"x"


class Cells(HTMLParser):
    """The table's cells by their names, and all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    rows = {"length": [5, 6, 7, 8, 99], "source": [HOSTILE] * 5}
    pq.write_table(pa.table(rows), tmp_path / "l.parquet")
    return tmp_path / "l.parquet"


def test_an_index_and_a_plan_are_told_in_a_line_and_a_table(lengths: Path, tmp_path: Path) -> None:
    summary = plan_packs(lengths, tmp_path / "index", capacity=16, margin=0.0)
    index = open_index(tmp_path / "index")
    held = "2 packs of 16 tokens, 81.25 % full, 1 sample in no pack"
    name = f"{tmp_path}/index@{index.id[:12]}, {held}"
    assert repr(index) == f"Index({name})"
    assert re.fullmatch(
        re.escape(f"PlanSummary({name}, planned in ") + r"\d+\.\d s\)", repr(summary)
    )
    again = plan_packs(lengths, tmp_path / "index", capacity=16, margin=0.0)
    assert repr(again) == f"PlanSummary({name}, was there already)"
    for told in (index, summary):
        cells = Cells(told._repr_html_())
        assert cells.tags == {"table", "caption", "tbody", "tr", "th", "td"}
        facts = dict(zip(cells.texts[1::2], cells.texts[2::2], strict=True))
        assert facts["capacity"] == "16 tokens" and facts["packs"] == "2, 81.25 % full"
        assert facts["dropped"] == "1 sample of 5, 20.00 %: too_long 1"
        assert facts["snapshot"] == index.id and facts["planned of"] == str(lengths)
        assert facts["lengths"] == "taken as given"


def test_nothing_of_the_data_is_markup(lengths: Path, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    moved = lengths.rename(folder / "l.parquet")
    plan_packs(moved, folder / "index", capacity=16)
    cells = Cells(open_index(folder / "index")._repr_html_())
    assert "script" not in cells.tags and str(moved) in cells.texts


def test_no_file_is_read_and_nothing_is_raised(lengths: Path, tmp_path: Path) -> None:
    plan_packs(lengths, tmp_path / "index", capacity=16)
    index = open_index(tmp_path / "index")
    before = repr(index), index._repr_html_()
    for path in (tmp_path / "index").rglob("*"):
        if path.is_file():
            path.unlink()
    assert (repr(index), index._repr_html_()) == before
    empty = object.__new__(Index)
    assert repr(empty) == "Index(not open)" and "not open" in empty._repr_html_()
