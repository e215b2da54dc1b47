"""A plan whose windows are tasks of Ray: each is counted, then written by a task of its own.

Where a window's packs and rows begin depends on the windows before it. So every window is planned
twice: the first time for its counts alone. Neither the driver nor Ray's object store ever holds a
window, and a task that is repeated finds nothing missing.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packidx.errors import MismatchError
from packidx.index.window_files import WindowFiles, WrittenWindow
from packidx.index.writer import SnapshotWriter
from packidx.io.files import remove_tree
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.job import Job, block_of
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.select.eligible import Rules
from packidx.plan.window import WindowPlan
from packidx.plan.windows import Window
from packidx.plan.write.result import PlanTotals
from packidx.plan.write.write_window import write_window
from packidx.run.engines import open_workers
from packidx.run.workers import WorkerDied

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Given:
    """What the windows of a plan have in common."""

    uri: str
    fingerprint: str | None
    """Of the lengths; None of a bare table."""
    num_samples: int
    columns: list[str]
    options: ResolvedOptions
    rules: Rules


@dataclass(frozen=True, slots=True)
class _Planner:
    """The same in a task's process, which has the lengths open."""

    given: _Given
    table: Lengths

    def plan(self, window: Window) -> WindowPlan:
        rows = self.table.read(window.start, window.stop, self.given.columns)
        return WindowPlan(window.number, rows, self.given.options, self.given.rules)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A window, which of its packs stay where some are drawn, and what is to be done with it."""

    window: Window
    drawn: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a window holds.

    Attributes:
        packs: of each epoch; empty where nothing can be packed.
        pieces: rows of the samples table in an epoch.
    """

    packs: tuple[int, ...]
    pieces: int


@dataclass(frozen=True, slots=True)
class _ToWrite:
    """A window to be written.

    Attributes:
        block: packs per optimizer step.
        totals: empty, with the numbers of the window's first pack and row.
        folder: for the window's own folder.
        every: write a file of each table at least.
    """

    asked: _Asked
    block: int
    totals: PlanTotals
    folder: Path
    every: bool


@dataclass(frozen=True, slots=True)
class _Done:
    totals: PlanTotals
    folder: Path
    written: WrittenWindow


class RayJob(Job):
    """A plan whose windows are planned and written by tasks of Ray."""

    def run(self) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """As `Job.run`.

        Raises:
            SourceError: there is no such Ray, or it gave a task up.
        """
        manifest = self.table.manifest
        given = _Given(
            self.table.uri,
            None if manifest is None else manifest["fingerprint"],
            self.table.num_samples,
            self._columns(),
            self.options,
            self.rules,
        )
        self._setup = functools.partial(_planner, given)
        with open_workers("ray", None) as self._workers:
            self.progress("starting Ray")
            self._workers.start(self._setup)
            return super().run()

    def _sizes(self) -> list[int]:
        asked = [_Asked(window, None) for window in self.windows]
        return [one.packs[0] for one in self._each("counted", _count, asked)]

    def _prepare(self, totals: PlanTotals) -> None:
        todo = self.windows[len(self.taken) :]
        drawn = self.drawn
        self._asked = [_Asked(one, None if drawn is None else drawn[one.number]) for one in todo]
        self._counted = list(self._each("counted", _count, self._asked))
        full = [one.packs[0] for one in self._counted if one.packs]
        if full and not self.block:
            self.block = block_of(full[0], len(self.windows), self.options)
        if not full:
            super()._prepare(totals)  # says why there are none

    def _write_all(self, writer: SnapshotWriter, totals: PlanTotals) -> None:
        folder = writer.folder_elsewhere()
        start = totals.going_on()
        todo: list[_ToWrite] = []
        for asked, counted in zip(self._asked, self._counted, strict=True):
            every = not todo and not writer.windows
            todo.append(_ToWrite(asked, self.block, start, folder, every))
            start = start.going_on()
            start.num_packs += sum(counted.packs)
            start.num_pieces += counted.pieces * len(counted.packs)
        ends = [*(one.totals for one in todo[1:]), start]
        for done, end in zip(self._each("written", _write, todo), ends, strict=True):
            totals.take(done.totals)
            if (totals.num_packs, totals.num_pieces) != (end.num_packs, end.num_pieces):
                raise MismatchError(
                    f"{self.table.uri} changed while it was planned: plan again when nobody writes "
                    "it"
                )
            writer.take_window(done.folder, done.written)

    def _each(
        self, what: str, call: Callable[..., Result], items: Sequence[Any]
    ) -> Iterator[Result]:
        """``call(item, planner)`` of every item, by tasks, in the items' order."""
        try:
            for number, result in self._workers.run(call, items, self._setup, in_turn=True):
                self.progress(f"{what} {number + 1} of {len(items)} windows")
                yield result
        except WorkerDied as died:
            numbers = ", ".join(str(number + 1) for number in died.waiting[:3])
            raise died.error(
                f"planned {self.table.uri}, one of the windows {numbers}",
                "use smaller windows (--memory-limit)",
            ) from None


def _planner(given: _Given) -> _Planner:
    table = read_lengths(given.uri)
    found = None if table.manifest is None else table.manifest["fingerprint"]
    if (found, table.num_samples) != (given.fingerprint, given.num_samples):
        raise MismatchError(
            f"{given.uri} has {table.num_samples} rows and fingerprint {found} here, the driver's "
            f"has {given.num_samples} and {given.fingerprint}: plan again when nobody writes it"
        )
    return _Planner(given, table)


def _count(asked: _Asked, planner: _Planner) -> _Counted:
    plan = planner.plan(asked.window)
    if not plan.items.num_items:
        return _Counted((), 0)
    if asked.drawn is not None:
        plan.keep(asked.drawn)
    epochs = range(planner.given.options.epochs)
    return _Counted(tuple(plan.num_packs(epoch) for epoch in epochs), plan.num_pieces)


def _write(todo: _ToWrite, planner: _Planner) -> _Done:
    """Write a window into a folder that no other try has."""
    window, totals = todo.asked.window, todo.totals
    plan = planner.plan(window)
    dropped = plan.dropped
    if todo.asked.drawn is not None and plan.items.num_items:
        dropped = plan.keep(todo.asked.drawn)
    folder = todo.folder / f"{window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    files = WindowFiles(folder, window.number)
    try:
        write_window(files, plan, window, dropped, todo.block, totals, lambda doing: None)
        return _Done(totals, folder, files.close(every=todo.every))
    except BaseException:
        files.abandon()
        remove_tree(folder)
        raise
