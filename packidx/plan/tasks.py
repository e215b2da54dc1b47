"""A plan whose windows are planned by workers: each is solved, then written, by a task of its own.

Where a window's packs and rows begin depends on the windows before it. So all windows are solved
first, and each one's solution comes back as data; the task that writes the window reads its rows
again, and composes its packs of them. The caller never holds a window's rows, and a task that is
repeated finds nothing missing.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from packidx.arrays import Bools, Int64s
from packidx.errors import MismatchError
from packidx.index.window_files import WindowFiles, WrittenWindow
from packidx.index.writer import SnapshotWriter
from packidx.io.files import remove_tree
from packidx.lengths.table import Lengths, read_lengths
from packidx.pack.solve import Solution
from packidx.plan.job import PlanJob
from packidx.plan.make import MadePlan, complain, publish
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.select.eligible import Rules
from packidx.plan.window import WindowPlan, plan_window
from packidx.plan.windows import Window
from packidx.plan.write.result import PlanTotals
from packidx.plan.write.write_window import Progress, write_window
from packidx.run.workers import WorkerDied, Workers

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Given:
    """What the windows of a plan have in common."""

    uri: str
    fingerprint: str | None
    """Of the lengths; None of a bare table."""
    num_samples: int
    options: ResolvedOptions
    rules: Rules


@dataclass(frozen=True, slots=True)
class _Planner:
    """The same in a task's process, which has the lengths open."""

    given: _Given
    table: Lengths

    def plan(self, window: Window, solutions: list[Solution] | None = None) -> WindowPlan:
        return plan_window(self.table, window, self.given.options, self.given.rules, solutions)


@dataclass(frozen=True, slots=True)
class _Solved:
    """How a window is packed.

    Attributes:
        packs: of each epoch; empty where nothing can be packed.
        pieces: rows of the samples table in an epoch.
        sizes: int64 [packs], items in each provisional pack, where some packs are to be drawn.
        kept: bool [packs], those that are.
    """

    window: Window
    solutions: list[Solution]
    packs: tuple[int, ...]
    pieces: int
    sizes: Int64s | None
    kept: Bools | None = None

    def keep(self, kept: Bools) -> _Solved:
        """The same with some of its packs."""
        if self.sizes is None:
            return self
        packs, pieces = int(kept.sum()), int(self.sizes[kept].sum())
        return replace(self, packs=(packs,) * len(self.packs), pieces=pieces, kept=kept)


@dataclass(frozen=True, slots=True)
class _ToWrite:
    """A window to be written.

    Attributes:
        block: packs per optimizer step.
        totals: empty, with the numbers of the window's first pack and row.
        folder: for the window's own folder.
        every: write a file of each table at least.
    """

    solved: _Solved
    block: int
    totals: PlanTotals
    folder: Path
    every: bool


@dataclass(frozen=True, slots=True)
class _Done:
    totals: PlanTotals
    folder: Path
    written: WrittenWindow


def make_with(workers: Workers, job: PlanJob, progress: Progress) -> MadePlan:
    """`make_plan`, its windows planned and written by `workers`.

    Raises:
        OptionError, SourceError: there is nothing to pack, or a worker died.
        MismatchError: the lengths are others for a worker, or changed in between.
    """
    manifest = job.table.manifest
    fingerprint = None if manifest is None else manifest.fingerprint
    given = _Given(job.table.uri, fingerprint, job.table.num_samples, job.options, job.rules)
    setup = functools.partial(_planner, given)
    progress("starting workers")
    workers.start(setup)

    def each(what: str, call: Callable[..., Result], items: Sequence[Any]) -> Iterator[Result]:
        """``call(item, planner)`` of every item, in the items' order."""
        try:
            for number, result in workers.run(call, items, setup, in_turn=True):
                progress(f"{what} {number + 1} of {len(items)} windows")
                yield result
        except WorkerDied as died:
            numbers = ", ".join(str(number + 1) for number in died.waiting[:3])
            raise died.error(
                f"planned {job.table.uri}, one of the windows {numbers}",
                "use smaller windows (--memory-limit)",
            ) from None

    totals = job.totals()
    solved = list(each("counted", _solve, job.todo))
    if job.options.max_packs is not None:
        drawn = job.draw([window.packs[0] if window.packs else 0 for window in solved])
        solved = [window.keep(kept) for window, kept in zip(solved, drawn, strict=True)]
    if not totals.num_packs and not any(window.packs for window in solved):
        complain(job, [job.plan(window) for window in job.todo])

    def write(writer: SnapshotWriter) -> None:
        todo, end = _to_write(job, solved, totals, writer)
        ends = [*(window.totals for window in todo[1:]), end]
        for done, end in zip(each("written", _write, todo), ends, strict=True):
            totals.take(done.totals)
            if (totals.num_packs, totals.num_pieces) != (end.num_packs, end.num_pieces):
                raise MismatchError(
                    f"{job.table.uri} changed while it was planned: plan again when nobody writes "
                    "it"
                )
            writer.take_window(done.folder, done.written)

    return publish(job, totals, write, progress)


def _to_write(
    job: PlanJob, solved: Sequence[_Solved], totals: PlanTotals, writer: SnapshotWriter
) -> tuple[list[_ToWrite], PlanTotals]:
    """The windows with the numbers that they begin at, and the numbers behind the last one."""
    folder = writer.folder_elsewhere()
    block = job.block(next((window.packs[0] for window in solved if window.packs), None))
    start = PlanTotals.empty(job.options, totals.num_packs, totals.num_pieces)
    todo: list[_ToWrite] = []
    for window in solved:
        every = not todo and not writer.windows
        todo.append(_ToWrite(window, block, start, folder, every))
        start = PlanTotals.empty(
            job.options,
            start.num_packs + sum(window.packs),
            start.num_pieces + window.pieces * len(window.packs),
        )
    return todo, start


def _planner(given: _Given) -> _Planner:
    table = read_lengths(given.uri)
    fingerprint = None if table.manifest is None else table.manifest.fingerprint
    if (fingerprint, table.num_samples) != (given.fingerprint, given.num_samples):
        raise MismatchError(
            f"{given.uri} has {table.num_samples} rows and fingerprint {fingerprint} here, the "
            f"driver's has {given.num_samples} and {given.fingerprint}: plan again when nobody "
            "writes it"
        )
    return _Planner(given, table)


def _solve(window: Window, planner: _Planner) -> _Solved:
    plan = planner.plan(window)
    options, has_items = planner.given.options, plan.items.num_items > 0
    packs = tuple(plan.num_packs(epoch) for epoch in range(options.epochs if has_items else 0))
    sizes = plan.pack_sizes() if has_items and options.max_packs is not None else None
    return _Solved(window, plan.solutions, packs, plan.num_pieces, sizes)


def _write(todo: _ToWrite, planner: _Planner) -> _Done:
    """Write a window into a folder that no other try has."""
    solved, totals = todo.solved, todo.totals
    plan = planner.plan(solved.window, solved.solutions)
    if solved.kept is not None:
        plan = plan.keep(solved.kept)
    folder = todo.folder / f"{solved.window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    files = WindowFiles(folder, solved.window.number)
    try:
        write_window(files, plan, todo.block, totals, lambda doing: None)
        return _Done(totals, folder, files.close(every=todo.every))
    except BaseException:
        files.abandon()
        remove_tree(folder)
        raise
