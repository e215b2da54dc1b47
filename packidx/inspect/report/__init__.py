"""`write_report`: a plan as one HTML file with pictures.

The page has no script, takes nothing from the network, and is light or dark. A chart is boxes in
percent of their frame; names of the data are text of the page, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jinja2

from packidx.errors import OptionError
from packidx.index import Index, open_index
from packidx.index.frames import VIEWS, views_of_index
from packidx.inspect.report import figures
from packidx.inspect.sql import open_database
from packidx.inspect.stats import plan_stats
from packidx.inspect.verdict import plan_verdict
from packidx.io.files import write_atomic
from packidx.words import format_count

_PAGE = b"<!doctype html>"  # how a report begins
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def write_report(
    path: str,
    output: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] = lambda doing: None,
) -> None:
    """Write a report of an index: one HTML file, which needs nothing else.

    Sums, bins and named extremes alone are in it, so that it is as small for a hundred million
    samples as for a thousand. The same plan gives the same bytes.

    Args:
        path: ``INDEX`` or ``INDEX@ID``.
        output: the file, which is replaced as a whole.
        progress: is called with what is being done.

    Raises:
        NotFoundInIndex: there is no index.
        FormatError: what is there is damaged.
        OptionError: `output` has no folder, or is something else than a report.
    """
    name = os.fspath(output)
    if not os.path.isdir(os.path.dirname(os.path.abspath(name))) or os.path.isdir(name):
        raise OptionError(f"-o {name}: name a file in a folder that exists")
    if os.path.lexists(name) and not _is_page(name):
        raise OptionError(f"-o {name} is there and no report: name another file, or remove it")
    index = open_index(path)
    views = views_of_index(index, VIEWS, None)
    with open_database(views) as connection:
        progress("adding up")
        report = _of_index(index, connection, views.absent.get("lengths"))
    progress("drawing")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: _UNSEEN.sub("\ufffd", value) if type(value) is str else value,
    )
    environment.filters |= {"kind": _cell_class, "count": format_count}
    page = files(__package__).joinpath("page.html").read_text()
    write_atomic(name, environment.from_string(page).render(report).encode())


def _is_page(path: str) -> bool:
    """Return whether a file that is there may be replaced by a report: no device, and no data."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(_PAGE)).lower() in (b"", _PAGE)
    except OSError:
        return False


def _cell_class(cell: Any) -> str:
    """The style's class of a table's cell."""
    if not isinstance(cell, str) or cell.endswith(" %"):
        return "number"
    return "long" if len(cell) > 24 else ""


def _of_index(index: Index, connection: Any, absent: str | None) -> dict[str, Any]:
    """Return what the template shows of a plan; `absent` says why there are no lengths."""
    snapshot = index.snapshot
    result, options = snapshot.result, snapshot.options
    stats = plan_stats(index)
    sources = "SELECT source FROM samples UNION ALL SELECT source FROM dropped"
    rows = connection.execute(f"SELECT source, count(*) FROM ({sources}) GROUP BY 1").fetchall()
    series = figures.Series(sorted(rows, key=lambda row: (row[0] is None, row[0] or "")))
    return {
        "title": f"Plan {index.path}@{index.id[:12]}",
        "subtitle": f"packidx report of {index.path}@{index.id}, planned {snapshot.created}",
        "verdict": [f"{said[:1].upper()}{said[1:]}." for said in plan_verdict(index, stats)],
        "numbers": {
            "packs": format_count(result.num_packs),
            "capacity": format_count(options.capacity),
            "fill": f"{100 * result.fill:.2f} %",
            "samples packed": format_count(result.num_samples),
            "in no pack": format_count(result.num_dropped),
            "over the bound": f"{result.gap_percent:.3f} %",
        },
        "figures": [
            figures.draw_tokens(index, connection),
            figures.draw_fill(index, connection),
            None if absent else figures.draw_lengths(connection, series, options.capacity),
            figures.draw_waiting(stats["schedule"], result.schedule),
            figures.packs_closely(index, connection, series),
        ],
        "notes": [f"lengths: {absent}"] if absent else [],
    }
