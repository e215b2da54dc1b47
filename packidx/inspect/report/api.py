"""`write_report`: a plan, or lengths, as one page with pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packidx.errors import OptionError
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.report import figures
from packidx.inspect.report.page import Figure, Report, Section, Series, page_of
from packidx.inspect.sql import Asked, asked, connect
from packidx.inspect.stats import plan_stats
from packidx.inspect.verdict import verdict
from packidx.inspect.waiting import RANKS
from packidx.io.files import write_atomic
from packidx.words import count

_PAGE = b"<!doctype html>"  # how a report begins


def write_report(
    path: str,
    output: str | os.PathLike[str],
    *,
    ranks: Sequence[int] = RANKS,
    roots: Mapping[str, str] | None = None,
    log: str | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> None:
    """Write a report of an index or a lengths table: one HTML file, which needs nothing else.

    Sums, bins and named extremes alone are in it, so that it is as small for a hundred million
    samples as for a thousand. The same plan gives the same bytes.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or a lengths table.
        output: the file, which is replaced as a whole.
        ranks: numbers of data-parallel ranks that the schedule is looked at for.
        roots: ``{old: new}`` path prefixes, for data that has moved.
        log: folder of a run's log of its steps: adds the losses.
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
    question = _asked(path, roots or {}, log)
    with question.views(" ".join(question.names)) as views:
        connection = connect(views)
        try:
            absent = dict(views.absent)
            if question.index is None:
                report = _of_lengths(question, connection)
            else:
                report = _of_index(
                    question.index, connection, absent, ranks, bool(question.log), progress
                )
        finally:
            connection.close()
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


def _asked(path: str, roots: Mapping[str, str], log: str | None) -> Asked:
    """Return what is at `path`; an order without steps of its own is cut into a few of them."""
    question = asked(path, roots, log)
    if question.index is None or packs_per_step(question.index.snapshot) is not None:
        return question
    snapshot = question.index.snapshot
    packs = snapshot.result.num_packs
    return asked(path, roots, log, global_batch=max(1, packs // figures.STEPS))


def _series(connection: Any, *views: str) -> Series:
    sources = " UNION ALL ".join(f"SELECT source FROM {view}" for view in views)
    rows = connection.execute(f"SELECT source, count(*) FROM ({sources}) GROUP BY 1").fetchall()
    return Series(sorted(rows, key=lambda row: (row[0] is None, row[0] or "")))


def _of_lengths(question: Asked, connection: Any) -> Report:
    figures.create_counted(connection)
    series = _series(connection, "counted")
    number, tokens, rejected, longest = connection.execute(
        "SELECT count(*), coalesce(sum(length) FILTER (status IS DISTINCT FROM 'rejected'), 0), "
        "count(*) FILTER (status = 'rejected'), max(length) FROM counted"
    ).fetchone()
    table = question.lengths and question.lengths.manifest
    drawn = [
        *figures.lengths(connection, series),
        figures.longest(connection),
        figures.columns_used(table.sources if table else ()),
        figures.rejected(connection),
    ]
    numbers = [
        ("records", count(number)),
        ("tokens", count(tokens)),
        ("rejected", count(rejected)),
        ("longest sample", "–" if longest is None else count(longest)),
        ("sources", count(series.num_sources)),
    ]
    sections = [Section("Lengths", drawn)]
    return Report(f"Lengths {question.path}", "packidx report", [], numbers, sections)


def _of_index(
    index: Index,
    connection: Any,
    absent: Mapping[str, str],
    ranks: Sequence[int],
    has_log: bool,
    progress: Callable[[str], None],
) -> Report:
    snapshot = index.snapshot
    result, options = snapshot.result, snapshot.options
    stats = plan_stats(index, ranks)
    series = _series(connection, "samples", "dropped")
    progress("adding up")
    notes: list[str] = []
    of_lengths: list[Figure | None] = []
    if "lengths" in absent:
        notes.append(f"lengths: {absent['lengths']}")
    else:
        figures.create_counted(connection)
        of_lengths = [*figures.lengths(connection, series, options.capacity)]
        of_lengths.append(figures.rejected(connection))
    of_packs = [
        figures.tokens(index, connection),
        figures.fill(index, connection),
        figures.samples(connection),
        figures.dropped(index, connection),
    ]
    waiting = figures.waiting(stats["schedule"], result.schedule)
    of_training = [waiting, figures.steps(connection, series)]
    if has_log:
        of_training.append(figures.losses(connection, series))
    sections = [
        Section("Packs", of_packs),
        Section("Training", of_training),
        Section("A closer look", figures.packs_closely(index, connection, series)),
        Section("Lengths", of_lengths),
        Section("Origin", list(figures.origin(index))),
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
    return Report(f"Plan {index.path}@{index.id[:12]}", subtitle, said, numbers, sections, notes)
