"""A plan made of its job: window by window, each planned, written and let go of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packidx.errors import OptionError, SourceError
from packidx.format.decode import decoded
from packidx.format.index import IndexManifest
from packidx.format.plan import Options
from packidx.index.writer import SnapshotWriter, writing
from packidx.pack.solve import Solution
from packidx.plan.job import PlanJob
from packidx.plan.window import WindowPlan
from packidx.plan.windows import Window
from packidx.plan.write.result import PlanTotals, lengths_entry
from packidx.plan.write.tables import Progress, write_window


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A published plan: its snapshot, whether it was there already, and what it was to say."""

    snapshot: IndexManifest
    existed: bool
    planned: IndexManifest


def make_plan(job: PlanJob, progress: Progress) -> MadePlan:
    """Plan and write every window in turn, in this process.

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

    return publish(job, totals, write, progress)


def publish(
    job: PlanJob, totals: PlanTotals, write: Callable[[SnapshotWriter], None], progress: Progress
) -> MadePlan:
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
        snapshot, existed = writer.publish(planned)
    return MadePlan(snapshot, existed, planned)


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
    job: PlanJob, window: Window, solutions: list[Solution] | None, progress: Progress
) -> WindowPlan:
    of_all = f" of window {window.number + 1} of {len(job.windows)}" if len(job.windows) > 1 else ""
    progress(f"packing {window.stop - window.start:,} samples{of_all}")
    return job.plan(window, solutions)
