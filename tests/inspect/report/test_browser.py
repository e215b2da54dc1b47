"""A report in Chromium: all of it is drawn, on a desk and on a phone, without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest

from packidx import plan_packs
from packidx.inspect.report import write_report

pytestmark = pytest.mark.slow

MEASURE = """<script>parent.postMessage([document.documentElement.scrollWidth, innerWidth,
[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 100).length,
performance.now()].join(), '*')</script>"""
FRAME = """<!doctype html><iframe src="inner.html" style="width: {width}px; height: 900px"></iframe>
<p id="told">nothing</p><script>onmessage = e => told.textContent = e.data</script>"""


def chromium() -> str:
    """The browser; where `.ci/run` runs it must be there."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    if os.environ.get("NEEDS_CHROMIUM"):
        pytest.fail("no chromium: install Debian's package chromium")
    pytest.skip("no chromium: install Debian's package chromium")


def browse(page: Path, *options: str) -> str:
    """The page's DOM once it has settled."""
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", *options]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Refused to" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three sources, some of whose samples are too long."""
    folder = tmp_path_factory.mktemp("report")
    at = pl.int_range(20_000, eager=True)
    frame = pl.DataFrame(
        {
            "length": ((at * 7919) % 2990 + 10).cast(pl.Int32),
            "source": pl.Series(["chats", "photos", "a very long name of a source"]).gather(at % 3),
            "key": pl.Series([f"{number:0>40}" for number in at]),
        }
    )
    frame.write_parquet(folder / "lengths.parquet")
    plan_packs(folder / "lengths.parquet", folder / "index", capacity=2048)
    write_report(str(folder / "index"), folder / "r.html")
    return folder / "r.html"


@pytest.mark.parametrize("width", [390, 1400])
def test_all_charts_are_drawn_and_nothing_is_wider_than_the_screen(
    page: Path, tmp_path: Path, width: int
) -> None:
    text = page.read_text()
    charts = text.count('<div class="wide">')
    assert charts >= 9
    inner = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (tmp_path / "inner.html").write_text(inner.replace("</body>", f"{MEASURE}</body>"))
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    dom = browse(tmp_path / "frame.html")
    told = re.search(r'<p id="told">([\d.,]+)</p>', dom)
    assert told, dom[-500:]
    wide, inside, drawn, _ = (float(each) for each in told.group(1).split(","))
    assert wide <= inside
    assert drawn == charts


def test_it_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 1.5e6
    assert "http://" not in re.sub(r"http://www\.w3\.org/[\w/.]*", "", text)  # names of SVG
    assert "https://" not in text
    assert "<h2>Where it is from</h2>" in browse(page)
