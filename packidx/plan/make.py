"""A plan made of its job: window by window, each solved, written and let go of.

Where a window's packs and rows begin depends on the windows before it. So a window is two tasks:
one solves it, and one writes it, which reads its rows again and composes its packs of the solution.
Of workers all windows are solved before the first is written. A process that does both does them
in turn, and holds on to the rows in between. The caller never holds a window's rows, and a task
that is repeated finds nothing missing.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from packidx.arrays import Bools, Int64s
from packidx.errors import MismatchError, OptionError, SourceError
from packidx.format.index import IndexManifest, Options
from packidx.index.window_files import WindowFiles, WrittenWindow
from packidx.index.writer import writing
from packidx.io.files import remove_tree
from packidx.lengths.table import Lengths, read_lengths
from packidx.pack.solve import Solution
from packidx.plan.job import PlanJob
from packidx.plan.select.eligible import Rules
from packidx.plan.window import WindowPlan, plan_window
from packidx.plan.windows import WindowRange
from packidx.plan.write import PlanTotals, Progress, lengths_entry, write_window
from packidx.run.workers import WorkerDied, Workers


def make_plan(workers: Workers, job: PlanJob, progress: Progress) -> tuple[IndexManifest, bool]:
    """Plan and write every window: by `workers`, or in this process if they do not take so many.

    Returns:
        the snapshot's manifest, and whether this very plan was there already.

    Raises:
        OptionError, SourceError: there is nothing to pack, and nothing is written; a worker died.
        MismatchError: the lengths are others for a worker, or changed in between.
    """
    each = _in_this_process(job, progress)
    if workers.takes(len(job.todo)):
        each = _by_workers(workers, job, progress)
    with contextlib.closing(each("packing samples", _solve, job.todo)) as results:
        solved = results if job.options.max_packs is None else _drawn(job, list(results))
        first, totals = _until_packs(solved), job.totals()
        if not totals.num_packs and not any(window.packs for window in first):
            raise _nothing_to_pack(job, first)
        block = job.block(next((window.packs[0] for window in first if window.packs), None))

        def uploaded(done: int, total: int) -> None:
            progress(f"publishing: {done} of {total} files are uploaded")

        with writing(job.output, uploaded) as writer:
            if job.append is not None:
                writer.take_over(job.append.location, job.append.snapshot)
            todo = _numbered(chain(first, solved), totals, block, writer.folder_of_windows())
            with contextlib.closing(each("writing packs", _write, todo)) as written:
                for added, folder, window in written:
                    totals.take(added)
                    writer.take_window(folder, window)
            progress("publishing")
            planned = IndexManifest(
                snapshot_id="",
                parent=None,
                lengths=lengths_entry(job.table),
                options=job.options,
                result=totals.result(writer.windows),
                sources=totals.sources(job.table.manifest),
                shards=job.table.shards,
                files=(),
                created="",
                recipe=job.recipe,
            )
            return writer.publish(planned)


@dataclass(frozen=True, slots=True)
class _Solved:
    """A window's packs, before they are written.

    Attributes:
        packs: of each epoch; empty where nothing can be packed.
        pieces: rows of the samples table in an epoch.
        sizes: int64 [packs], items in each provisional pack, where some packs are to be drawn.
        reasons: why samples are dropped, and how many for each.
        shortest: tokens of the shortest sample that has some; 0 where something can be packed.
        kept: bool [packs], those that are drawn.
    """

    window: WindowRange
    solutions: list[Solution]
    packs: tuple[int, ...]
    pieces: int
    sizes: Int64s | None
    reasons: Counter[str]
    shortest: int
    kept: Bools | None = None

    def keep(self, kept: Bools) -> _Solved:
        """The same with some of its packs."""
        if self.sizes is None:
            return self
        packs, pieces = int(kept.sum()), int(self.sizes[kept].sum())
        return replace(self, packs=(packs,) * len(self.packs), pieces=pieces, kept=kept)


@dataclass(frozen=True, slots=True)
class _ToWrite:
    """A window to be written into a folder of its own in `folder`, `block` packs per step."""

    solved: _Solved
    start: tuple[int, int]
    """Numbers of its first pack and row."""
    block: int
    folder: Path

    @property
    def end(self) -> tuple[int, int]:
        """Numbers of the pack and the row that follow its own."""
        (pack, row), packs = self.start, self.solved.packs
        return pack + sum(packs), row + self.solved.pieces * len(packs)


class _Planner:
    """Plans windows of a table in the process that has it open."""

    def __init__(self, table: Lengths, options: Options, rules: Rules) -> None:
        self.table, self._options, self._rules = table, options, rules
        self._last: WindowPlan | None = None

    def solve(self, window: WindowRange) -> WindowPlan:
        """Plan a window, and hold on to the plan until another one is asked for."""
        self._last = None
        self._last = plan_window(self.table, window, self._options, self._rules)
        return self._last

    def composed(self, window: WindowRange, solutions: Sequence[Solution]) -> WindowPlan:
        """Return the plan of a window that is solved, and let go of the one that is held."""
        plan, self._last = self._last, None
        if plan is not None and plan.window == window:
            return plan
        del plan
        return plan_window(self.table, window, self._options, self._rules, solutions)


_Each = Callable[[str, Callable[[Any, _Planner], Any], Iterable[Any]], Generator[Any]]
"""``task(item, planner)`` of every item in turn, and the words for what is done."""


def _in_this_process(job: PlanJob, progress: Progress) -> _Each:
    planner, num_windows = _Planner(job.table, job.options, job.rules), len(job.todo)

    def each(
        doing: str, task: Callable[[Any, _Planner], Any], items: Iterable[Any]
    ) -> Generator[Any]:
        for number, item in enumerate(items, 1):
            progress(doing if num_windows == 1 else f"{doing} of window {number} of {num_windows}")
            yield task(item, planner)

    return each


def _by_workers(workers: Workers, job: PlanJob, progress: Progress) -> _Each:
    manifest = job.table.manifest
    fingerprint = None if manifest is None else manifest.fingerprint
    table = job.table.uri, fingerprint, job.table.num_samples
    setup = functools.partial(_planner, *table, job.options, job.rules)
    progress("starting workers")
    workers.start(setup)

    def each(
        doing: str, task: Callable[[Any, _Planner], Any], items: Iterable[Any]
    ) -> Generator[Any]:
        try:
            for number, result in workers.run(task, list(items), setup, in_turn=True):
                progress(f"{doing}: {number + 1} of {len(job.todo)} windows are done")
                yield result
        except WorkerDied as died:
            numbers = ", ".join(str(number + 1) for number in died.waiting[:3])
            raise died.error(
                f"planned {job.table.uri}, one of the windows {numbers}",
                "use smaller windows (--window)",
            ) from None

    return each


def _planner(
    uri: str, stated: str | None, num_samples: int, options: Options, rules: Rules
) -> _Planner:
    """The planner of a worker, which has the lengths at `uri` open.

    `stated` is the driver's fingerprint of them; None of a bare table.
    """
    table = read_lengths(uri)
    fingerprint = None if table.manifest is None else table.manifest.fingerprint
    if (fingerprint, table.num_samples) != (stated, num_samples):
        raise MismatchError(
            f"{uri} has {table.num_samples} rows and fingerprint {fingerprint} here, the driver's "
            f"has {num_samples} and {stated}: plan again when nobody writes it"
        )
    return _Planner(table, options, rules)


def _solve(window: WindowRange, planner: _Planner) -> _Solved:
    plan = planner.solve(window)
    options, has_items = plan.options, plan.items.num_items > 0
    usable = plan.items.rows.length[plan.items.rows.length > 0]
    return _Solved(
        window,
        plan.solutions,
        packs=tuple(plan.num_packs(epoch) for epoch in range(options.epochs if has_items else 0)),
        pieces=plan.num_pieces,
        sizes=plan.pack_sizes() if has_items and options.max_packs is not None else None,
        reasons=Counter(plan.dropped["reason"].to_pylist()),
        shortest=0 if has_items or not len(usable) else int(usable.min()),
    )


def _drawn(job: PlanJob, solved: list[_Solved]) -> Iterator[_Solved]:
    """Yield windows with the packs that stay of them."""
    drawn = job.draw([window.packs[0] if window.packs else 0 for window in solved])
    return (window.keep(kept) for window, kept in zip(solved, drawn, strict=True))


def _until_packs(solved: Iterator[_Solved]) -> list[_Solved]:
    """Take windows up to the first that has packs."""
    first = []
    for window in solved:
        first.append(window)
        if window.packs:
            break
    return first


def _nothing_to_pack(job: PlanJob, solved: list[_Solved]) -> OptionError | SourceError:
    """Return the error that says why no window has anything to pack."""
    reasons = sum((window.reasons for window in solved), Counter[str]())
    if "too_long" in reasons and not {"mix", "holdout", "consumed"} & reasons.keys():
        shortest = min(window.shortest for window in solved if window.shortest)
        return OptionError(
            f"capacity {job.options.longest} is below every usable sample of {job.table.uri} "
            f"(the shortest has {shortest - job.options.shift} tokens): raise --capacity"
        )
    counted = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
    return SourceError(
        f"{job.table.uri} holds no usable sample ({counted or 'no row'}): nothing to pack"
    )


def _numbered(
    solved: Iterable[_Solved], totals: PlanTotals, block: int, folder: Path
) -> Iterator[_ToWrite]:
    """Yield windows with the numbers of their first packs and rows, behind those of `totals`."""
    start = totals.num_packs, totals.num_pieces
    for window in solved:
        todo = _ToWrite(window, start, block, folder)
        yield todo
        start = todo.end


def _write(todo: _ToWrite, planner: _Planner) -> tuple[PlanTotals, Path, WrittenWindow]:
    """Write a window into a folder that no other try has; what it adds up to, and that folder."""
    solved = todo.solved
    plan = planner.composed(solved.window, solved.solutions)
    if solved.kept is not None:
        plan = plan.keep(solved.kept)
    totals = PlanTotals.empty(plan.options, *todo.start)
    folder = todo.folder / f"{solved.window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    files = WindowFiles(folder, solved.window.number)
    try:
        write_window(files, plan, todo.block, totals)
        if (totals.num_packs, totals.num_pieces) != todo.end:
            raise MismatchError(
                f"{planner.table.uri} changed while it was planned: plan again when nobody "
                "writes it"
            )
        return totals, folder, files.close()
    except BaseException:
        files.abandon()
        remove_tree(folder)
        raise
