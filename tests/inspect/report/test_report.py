"""Reports: every number is the table's, nothing in the data runs, and the page stays small."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from packidx import open_index, plan_packs
from packidx.errors import OptionError, PackidxError
from packidx.inspect.report import write_report

EVIL = "</script></title><img src=x onerror=alert(1)>"


def lengths(folder: Path, number: int, **columns: Any) -> Path:
    """A bare table of lengths from 10 to 3,000, of three sources."""
    at = pl.int_range(number, eager=True)
    names = pl.Series(["a", "b", "c"])
    frame = pl.DataFrame(
        {
            "length": ((at * 7919) % 2990 + 10).cast(pl.Int32),
            "source": names.gather(at % 3),
            "key": pl.Series([f"key {number}" for number in at]),
            **columns,
        }
    )
    folder.mkdir(exist_ok=True)
    frame.write_parquet(folder / "lengths.parquet")
    return folder / "lengths.parquet"


def cells(page: str, title: str) -> list[list[str]]:
    """Rows of the table of a figure."""
    figure = page[page.index(f"<h2>{title}</h2>") :]
    figure = figure[: figure.index("</figure>")]
    rows = re.findall(r"<tr>(.*?)</tr>", figure)
    listed = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    return [[html.unescape(cell) for cell in row] for row in listed if row]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_numbers_are_those_of_the_tables(tmp_path: Path) -> None:
    table = lengths(tmp_path, 5000)
    plan_packs(table, tmp_path / "index", capacity=2048)
    write_report(str(tmp_path / "index"), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    index = open_index(tmp_path / "index")
    packs, dropped = index.packs(), index.dropped()
    result = index.snapshot.result
    tokens = {row[0]: number(row[2]) for row in cells(page, "Where the tokens go")}
    assert tokens == {
        "in packs": sum(packs["length"].to_pylist()),
        "out: too_long": sum(dropped["length"].to_pylist()),
        "room left in packs": result.num_packs * 2048 - result.num_tokens,
    }
    fills = [number(row[1]) for row in cells(page, "How full packs are")]
    assert sum(fills) == packs.num_rows
    assert fills[-1] == sum(n >= 2048 * 0.999 for n in packs["length"].to_pylist())
    by_length = cells(page, "Samples by length and source")
    frame = pl.read_parquet(table)
    for name in ("a", "b", "c"):
        counted = sum(number(row[3]) for row in by_length if row[2] == name)
        assert counted == frame.filter(pl.col("source") == name).height
    assert f"{result.gap_percent:.3f} %" in page
    assert index.id in page


@pytest.mark.parametrize("on_long", ["drop", "split", "truncate"])
def test_tokens_that_are_cut_off_have_a_bar(tmp_path: Path, on_long: str) -> None:
    labels = pl.int_range(500, eager=True).cast(pl.Int32) % 5
    spans = [[{"start": 1, "stop": 1 + n}] if n else [] for n in labels.to_list()]
    kind = pl.List(pl.Struct({"start": pl.Int32, "stop": pl.Int32}))
    table = lengths(tmp_path, 500, label_tokens=labels, label_spans=pl.Series(spans, dtype=kind))
    plan_packs(table, tmp_path / "index", capacity=1024, on_long=on_long)
    write_report(str(tmp_path / "index"), tmp_path / "r.html")
    page, result = (tmp_path / "r.html").read_text(), open_index(tmp_path / "index").snapshot.result
    tokens = {row[0]: number(row[2]) for row in cells(page, "Where the tokens go")}
    cut = tokens.pop("cut off packed samples", 0)
    out = {name: n for name, n in tokens.items() if name.startswith("out: ")}
    assert out.keys() == {"out: too_long" if on_long == "drop" else "out: no_labels"}
    assert (cut, sum(out.values())) == (result.num_tokens_cut, result.num_tokens_dropped)
    assert cut + sum(out.values()) == result.num_tokens_lost
    assert bool(cut) == (on_long != "drop")


def test_nothing_in_the_data_runs(tmp_path: Path) -> None:
    evil = pl.Series([EVIL, "a`b`", "\x1b[31mred\x00"]).gather(pl.int_range(90, eager=True) % 3)
    table = lengths(tmp_path, 90, source=evil, key=pl.Series([f"{EVIL}{n}" for n in range(90)]))
    plan_packs(table, tmp_path / "index", capacity=2048)
    write_report(str(tmp_path / "index"), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert html.escape(EVIL[:39]) in page
    assert EVIL not in page
    assert "<script" not in page and "://" not in page  # it needs no network
    assert not re.search(r"<img|<svg|(src|href)=[\"']", page)
    assert "default-src 'none'" in page
    assert page.count("<title>") == page.count("</title>")


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    table = lengths(tmp_path, 200)
    plan_packs(table, tmp_path / "index", capacity=4096)
    table.unlink()
    write_report(str(tmp_path / "index"), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Not shown" in page
    assert "lengths.parquet" in page[page.index("Not shown") :]
    assert "Samples by length" not in page


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    plan_packs(lengths(tmp_path, 20), tmp_path / "index", capacity=4096)
    for output in (tmp_path, tmp_path / "none" / "r.html"):
        with pytest.raises(OptionError, match="name a file in a folder that exists"):
            write_report(str(tmp_path / "index"), output)
    with pytest.raises(PackidxError):
        write_report(str(tmp_path / "nothing"), tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_nothing_but_a_report_is_replaced(tmp_path: Path) -> None:
    """No data, and no device: a report that takes its place by renaming would remove it."""
    table = lengths(tmp_path, 20)
    plan_packs(table, tmp_path / "index", capacity=4096)
    head = tmp_path / "index" / "HEAD"
    os.mkfifo(tmp_path / "pipe")
    before = head.read_bytes()
    for output in (head, table, tmp_path / "pipe"):
        with pytest.raises(OptionError, match="is there and no report"):
            write_report(str(tmp_path / "index"), output)
    assert head.read_bytes() == before and (tmp_path / "pipe").is_fifo()
    (tmp_path / "r.html").touch()
    for _ in range(2):
        write_report(str(tmp_path / "index"), tmp_path / "r.html")
