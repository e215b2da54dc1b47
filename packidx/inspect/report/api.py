"""`write_report`: a plan, or lengths, as one page with pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from packidx.errors import OptionError
from packidx.index.reader import Index
from packidx.inspect.report import figures
from packidx.inspect.report.page import Report, Series, page_of
from packidx.inspect.sql import Asked, asked, connect
from packidx.inspect.stats import plan_stats
from packidx.inspect.verdict import verdict
from packidx.io.files import write_atomic
from packidx.words import count

_PAGE = b"<!doctype html>"  # how a report begins


def write_report(
    path: str,
    output: str | os.PathLike[str],
    *,
    ranks: Sequence[int] = (),
    progress: Callable[[str], None] = lambda doing: None,
) -> None:
    """Write a report of an index or a lengths table: one HTML file, which needs nothing else.

    Sums, bins and named extremes alone are in it, so that it is as small for a hundred million
    samples as for a thousand. The same plan gives the same bytes.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or a lengths table.
        output: the file, which is replaced as a whole.
        ranks: numbers of data-parallel ranks, as of `packidx.inspect.stats.plan_stats`.
        progress: told what is being done.

    Raises:
        NotFoundInIndex, SourceError: there is neither an index nor a lengths table.
        FormatError: what is there is damaged.
    """
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder) or os.path.isdir(output):
        raise OptionError(f"-o {os.fspath(output)}: name a file in a folder that exists")
    if os.path.lexists(output) and not _is_page(output):
        raise OptionError(
            f"-o {os.fspath(output)} is there and no report: name another file, or remove it"
        )
    question = asked(path, {})
    views = question.views(" ".join(question.names))
    with connect(views) as connection:
        if question.index is None:
            report = _of_lengths(question, connection)
        else:
            progress("adding up")
            report = _of_index(question.index, connection, views.absent.get("lengths"), ranks)
    progress("drawing")
    write_atomic(os.fspath(output), page_of(report).encode())


def _is_page(path: str | os.PathLike[str]) -> bool:
    """Return whether a file that is there may be replaced by a report: no device, and no data."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(_PAGE)).lower() in (b"", _PAGE)
    except OSError:
        return False


def _series(connection: Any, *views: str) -> Series:
    sources = " UNION ALL ".join(f"SELECT source FROM {view}" for view in views)
    rows = connection.execute(f"SELECT source, count(*) FROM ({sources}) GROUP BY 1").fetchall()
    return Series(sorted(rows, key=lambda row: (row[0] is None, row[0] or "")))


def _of_lengths(question: Asked, connection: Any) -> Report:
    columns = {row[0] for row in connection.execute("DESCRIBE lengths").fetchall()}
    status = "status IS DISTINCT FROM 'rejected'" if "status" in columns else "true"
    number, tokens, rejected, longest = connection.execute(
        f"SELECT count(*), coalesce(sum(length) FILTER ({status}), 0), "
        f"count(*) FILTER (NOT ({status})), max(length) FROM lengths"
    ).fetchone()
    series = _series(connection, "lengths") if "source" in columns else Series([(None, number)])
    numbers = [
        ("records", count(number)),
        ("tokens", count(tokens)),
        ("rejected", count(rejected)),
        ("longest sample", "–" if longest is None else count(longest)),
        ("sources", count(series.num_sources)),
    ]
    figure = figures.lengths(connection, series)
    return Report(f"Lengths {question.path}", "packidx report", [], numbers, [figure])


def _of_index(index: Index, connection: Any, absent: str | None, ranks: Sequence[int]) -> Report:
    snapshot = index.snapshot
    result, options = snapshot.result, snapshot.options
    stats = plan_stats(index, ranks)
    series = _series(connection, "samples", "dropped")
    drawn = [
        figures.tokens(index, connection),
        figures.fill(index, connection),
        None if absent else figures.lengths(connection, series, options.capacity),
        figures.waiting(stats["schedule"], result.schedule),
        figures.packs_closely(index, connection, series),
    ]
    numbers = [
        ("packs", count(result.num_packs)),
        ("capacity", count(options.capacity)),
        ("fill", f"{100 * result.fill:.2f} %"),
        ("samples packed", count(result.num_samples)),
        ("in no pack", count(result.num_dropped)),
        ("over the bound", f"{result.gap_percent:.3f} %"),
    ]
    said = [f"{words[:1].upper()}{words[1:]}".rstrip(".") + "." for words in verdict(index, stats)]
    subtitle = f"packidx report of {index.path}@{index.id}, planned {snapshot.created}"
    notes = [f"lengths: {absent}"] if absent else []
    return Report(f"Plan {index.path}@{index.id[:12]}", subtitle, said, numbers, drawn, notes)
