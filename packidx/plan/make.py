"""A plan made of its job: window by window, each planned, written and let go of.

Workers plan windows by tasks, each of which solves a window or writes it. Where a window's packs
and rows begin depends on the windows before it, so all are solved first, and each one's solution
comes back as data; the task that writes the window reads its rows again, and composes its packs of
them. The caller never holds a window's rows, and a task that is repeated finds nothing missing.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from packidx.arrays import Bools, Int64s
from packidx.errors import MismatchError, OptionError, SourceError
from packidx.format.index import IndexManifest, Options
from packidx.format.manifest import decoded
from packidx.index.window_files import WindowFiles, WrittenWindow
from packidx.index.writer import SnapshotWriter, writing
from packidx.io.files import remove_tree
from packidx.lengths.table import read_lengths
from packidx.pack.solve import Solution
from packidx.plan.job import PlanJob
from packidx.plan.resolved import ResolvedOptions
from packidx.plan.select.eligible import Rules
from packidx.plan.window import WindowPlan, plan_window
from packidx.plan.windows import WindowRange
from packidx.plan.write import PlanTotals, Progress, lengths_entry, write_window
from packidx.run.workers import WorkerDied, Workers


def make_plan(job: PlanJob, progress: Progress) -> tuple[IndexManifest, bool]:
    """Plan and write every window in turn, in this process.

    Returns:
        the snapshot's manifest, and whether this very plan was there already.

    Raises:
        OptionError, SourceError: there is nothing to pack; nothing is written then.
    """
    totals, plans = job.totals(), _plans(job, progress)
    first = _until_packs(plans)
    if not totals.num_packs and not any(plan.items.num_items for plan in first):
        complain(job, first)

    def write(writer: SnapshotWriter) -> None:
        block = 0
        while (plan := first.pop(0) if first else next(plans, None)) is not None:
            block = block or job.block(plan.num_packs() if plan.items.num_items else None)
            write_window(writer, plan, block, totals, progress)
            writer.end_window()
            del plan  # it holds a window's samples, and the next one is not planned yet

    return publish_plan(job, totals, write, progress)


def publish_plan(
    job: PlanJob, totals: PlanTotals, write: Callable[[SnapshotWriter], None], progress: Progress
) -> tuple[IndexManifest, bool]:
    """Publish what `write` writes, and adds to `totals`, behind the windows that are taken over."""

    def uploaded(done: int, total: int) -> None:
        progress(f"publishing: {done} of {total} files are uploaded")

    with writing(job.output, uploaded) as writer:
        if job.append is not None:
            writer.take_over(job.append.location, job.append.snapshot)
        write(writer)
        progress("publishing")
        planned = IndexManifest(
            snapshot_id="",
            parent=None,
            lengths=lengths_entry(job.table),
            options=decoded(Options, job.options.to_json()),
            result=totals.result(writer.windows),
            sources=totals.sources(job.table.manifest),
            shards=job.table.shards,
            files=(),
            created="",
            recipe=job.recipe,
        )
        return writer.publish(planned)


def complain(job: PlanJob, plans: list[WindowPlan]) -> None:
    """Say why no window, all of which are planned, has anything to pack.

    Raises:
        OptionError: all samples are too long.
        SourceError: there are none, or none that may be packed.
    """
    reasons = [reason for plan in plans for reason in plan.dropped["reason"].to_pylist()]
    if "too_long" in reasons and not {"mix", "holdout", "consumed"} & set(reasons):
        lengths = [plan.items.rows.length for plan in plans if plan.items.rows.length.any()]
        shortest = min(int(tokens[tokens > 0].min()) for tokens in lengths)
        raise OptionError(
            f"capacity {job.options.longest} is below every usable sample of {job.table.uri} "
            f"(the shortest has {shortest - job.options.shift} tokens): raise --capacity"
        )
    counted = ", ".join(f"{reasons.count(reason):,} {reason}" for reason in sorted(set(reasons)))
    raise SourceError(
        f"{job.table.uri} holds no usable sample ({counted or 'no row'}): nothing to pack"
    )


def _until_packs(plans: Iterator[WindowPlan]) -> list[WindowPlan]:
    """Plans up to the first that has packs."""
    first = []
    for plan in plans:
        first.append(plan)
        if plan.items.num_items:
            break
    return first


def _plans(job: PlanJob, progress: Progress) -> Iterator[WindowPlan]:
    """Plans of the windows, one after the other; of those that are drawn from, what is drawn."""
    if job.options.max_packs is None:
        for window in job.todo:
            yield _planned(job, window, None, progress)
        return
    solutions, sizes = [], []
    for window in job.windows:
        plan = _planned(job, window, None, progress)
        solutions.append(plan.solutions)
        sizes.append(plan.num_packs())
        del plan
    for window, solved, kept in zip(job.windows, solutions, job.draw(sizes), strict=True):
        plan = _planned(job, window, solved, progress)
        yield plan.keep(kept) if plan.items.num_items else plan
        del plan


def _planned(
    job: PlanJob, window: WindowRange, solutions: list[Solution] | None, progress: Progress
) -> WindowPlan:
    of_all = f" of window {window.number + 1} of {len(job.windows)}" if len(job.windows) > 1 else ""
    progress(f"packing {window.stop - window.start:,} samples{of_all}")
    return job.plan(window, solutions)


Result = TypeVar("Result")
Planner = Callable[..., WindowPlan]
"""`plan_window` of a window, and of the solutions where it is solved already."""


@dataclass(frozen=True, slots=True)
class _Solved:
    """A window's packs, before they are written.

    Attributes:
        packs: of each epoch; empty where nothing can be packed.
        pieces: rows of the samples table in an epoch.
        sizes: int64 [packs], items in each provisional pack, where some packs are to be drawn.
        kept: bool [packs], those that are.
    """

    window: WindowRange
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
    """A window to be written into a folder of its own in `folder`, `block` packs per step."""

    solved: _Solved
    start: tuple[int, int]
    """Numbers of its first pack and row."""
    block: int
    folder: Path


def make_with(workers: Workers, job: PlanJob, progress: Progress) -> tuple[IndexManifest, bool]:
    """`make_plan`, its windows planned and written by `workers`.

    Raises:
        OptionError, SourceError: there is nothing to pack, or a worker died.
        MismatchError: the lengths are others for a worker, or changed in between.
    """
    manifest = job.table.manifest
    fingerprint = None if manifest is None else manifest.fingerprint
    table = job.table.uri, fingerprint, job.table.num_samples
    setup = functools.partial(_planner, *table, job.options, job.rules)
    progress("starting workers")
    workers.start(setup)

    def each(what: str, call: Callable[..., Result], items: Sequence[Any]) -> Generator[Result]:
        """``call(item, planner)`` of every item, in the items' order."""
        try:
            for number, result in workers.run(call, items, setup, in_turn=True):
                progress(f"{what} {number + 1} of {len(items)} windows")
                yield result
        except WorkerDied as died:
            numbers = ", ".join(str(number + 1) for number in died.waiting[:3])
            raise died.error(
                f"planned {job.table.uri}, one of the windows {numbers}",
                "use smaller windows (--window)",
            ) from None

    totals = job.totals()
    solved = list(each("counted", _solve, job.todo))
    if job.options.max_packs is not None:
        drawn = job.draw([window.packs[0] if window.packs else 0 for window in solved])
        solved = [window.keep(kept) for window, kept in zip(solved, drawn, strict=True)]
    if not totals.num_packs and not any(window.packs for window in solved):
        complain(job, [job.plan(window) for window in job.todo])

    def write(writer: SnapshotWriter) -> None:
        block = job.block(next((window.packs[0] for window in solved if window.packs), None))
        folder = writer.folder_elsewhere()
        starts = [(totals.num_packs, totals.num_pieces)]
        for window in solved:
            packs, pieces = starts[-1]
            starts.append((packs + sum(window.packs), pieces + window.pieces * len(window.packs)))
        todo = [
            _ToWrite(window, start, block, folder)
            for window, start in zip(solved, starts[:-1], strict=True)
        ]
        with contextlib.closing(each("written", _write, todo)) as results:  # ends what is under way
            for (added, own_folder, written), end in zip(results, starts[1:], strict=True):
                totals.take(added)
                if (totals.num_packs, totals.num_pieces) != end:
                    raise MismatchError(
                        f"{job.table.uri} changed while it was planned: plan again when nobody "
                        "writes it"
                    )
                writer.take_window(own_folder, written)

    return publish_plan(job, totals, write, progress)


def _planner(
    uri: str, stated: str | None, num_samples: int, options: ResolvedOptions, rules: Rules
) -> Planner:
    """The planner of a task's process, which has the lengths at `uri` open.

    `stated` is the driver's fingerprint of them; None of a bare table.
    """
    table = read_lengths(uri)
    fingerprint = None if table.manifest is None else table.manifest.fingerprint
    if (fingerprint, table.num_samples) != (stated, num_samples):
        raise MismatchError(
            f"{uri} has {table.num_samples} rows and fingerprint {fingerprint} here, the driver's "
            f"has {num_samples} and {stated}: plan again when nobody writes it"
        )
    return functools.partial(plan_window, table, options=options, rules=rules)


def _solve(window: WindowRange, planner: Planner) -> _Solved:
    plan = planner(window)
    options, has_items = plan.options, plan.items.num_items > 0
    packs = tuple(plan.num_packs(epoch) for epoch in range(options.epochs if has_items else 0))
    sizes = plan.pack_sizes() if has_items and options.max_packs is not None else None
    return _Solved(window, plan.solutions, packs, plan.num_pieces, sizes)


def _write(todo: _ToWrite, planner: Planner) -> tuple[PlanTotals, Path, WrittenWindow]:
    """Write a window into a folder that no other try has; what it adds up to, and that folder."""
    solved = todo.solved
    plan = planner(solved.window, solutions=solved.solutions)
    if solved.kept is not None:
        plan = plan.keep(solved.kept)
    totals = PlanTotals.empty(plan.options, *todo.start)
    folder = todo.folder / f"{solved.window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    files = WindowFiles(folder, solved.window.number)
    try:
        write_window(files, plan, todo.block, totals, lambda doing: None)
        return totals, folder, files.close()
    except BaseException:
        files.abandon()
        remove_tree(folder)
        raise
