"""A plan made of its job: window by window, each solved, written and let go of.

A window is a pure function of its rows and the options: files in a folder of its own, with numbers
of their own, and their sums. So windows may be planned anywhere and twice, and the caller never
holds a window's rows. How many packs are a step, which no window knows by itself, is decided first.
"""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from packidx.errors import MismatchError, OptionError, SourceError
from packidx.format.index import IndexManifest, LengthsOf, Options, Result, Source, Window
from packidx.format.manifest import decoded
from packidx.index.writer import writing
from packidx.io.files import remove_tree
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.job import PlanJob
from packidx.plan.schedule import blocks_of
from packidx.plan.select.eligible import Rules
from packidx.plan.window import WindowPlan, plan_window
from packidx.plan.windows import WindowRange
from packidx.plan.write import write_window
from packidx.run.workers import Workers

Progress = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R")


def make_plan(workers: Workers, job: PlanJob, progress: Progress) -> tuple[IndexManifest, bool]:
    """Plan and write every window: by `workers`, or in this process if they do not take so many.

    Returns:
        the snapshot's manifest, and whether this very plan was there already.

    Raises:
        OptionError, SourceError: there is nothing to pack, and nothing is written; a worker died.
        MismatchError: the lengths are others for a worker.
    """
    planners = _Planners(workers, job, progress)
    block = job.block(_first_packs(planners, job))

    def uploaded(done: int, total: int) -> None:
        progress(f"publishing: {done} of {total} files are uploaded")

    with writing(job.output, uploaded) as writer:
        todo = [_ToWrite(each, block, writer.staging) for each in job.windows]
        windows: list[Window] = []
        of_sources: list[_SourceSums] = []
        for folder, window, sums in planners.run("writing packs", _write, todo):
            writer.take_window(folder, window)
            windows.append(window)
            of_sources += sums
        progress("publishing")
        return writer.publish(_manifest(job, block, windows, of_sources))


def try_plan(workers: Workers, job: PlanJob, progress: Progress) -> IndexManifest:
    """Plan every window and write nothing; return the manifest, without ids.

    Raises:
        OptionError, SourceError, MismatchError: as of `make_plan`.
    """
    planners = _Planners(workers, job, progress)
    block = job.block(_first_packs(planners, job))
    todo = [_ToWrite(each, block, None) for each in job.windows]
    made = [*planners.run("packing samples", _add_up, todo)]
    of_sources = [each for _, sums in made for each in sums]
    return _manifest(job, block, [window for window, _ in made], of_sources)


def _manifest(
    job: PlanJob, block: int, windows: Sequence[Window], of_sources: Iterable[_SourceSums]
) -> IndexManifest:
    blocks = blocks_of(job.options.schedule, block, job.options.micro_steps)
    return IndexManifest(
        snapshot_id="",
        parent=None,
        lengths=_lengths_entry(job.table),
        options=job.options,
        result=Result.of(windows, job.options, blocks),
        sources=_sources(job.table, windows, of_sources),
        shards=job.table.shards,
        windows=tuple(windows),
        created="",
        recipe=job.recipe,
    )


class _Planner:
    """Plans windows of a table in the process that has it open."""

    def __init__(self, table: Lengths, options: Options, rules: Rules) -> None:
        self.table, self._options, self._rules = table, options, rules
        self._last: WindowPlan | None = None

    def plan(self, window: WindowRange) -> WindowPlan:
        """Plan a window, and hold on to the plan until the next one is asked for."""
        last, self._last = self._last, None
        if last is None or last.window != window:
            del last
            last = plan_window(self.table, window, self._options, self._rules)
        self._last = last
        return last

    def let_go(self) -> None:
        """Forget the last plan."""
        self._last = None


class _Planners:
    """The processes that plan: workers, or this one."""

    def __init__(self, workers: Workers, job: PlanJob, progress: Progress) -> None:
        self._workers, self._job, self._progress = workers, job, progress
        manifest = job.table.manifest
        fingerprint = None if manifest is None else manifest.fingerprint
        table = job.table.uri, fingerprint, job.table.num_samples
        self._setup = functools.partial(_planner, *table, job.options, job.rules)
        self._here = _Planner(job.table, job.options, job.rules)

    def run(self, doing: str, task: Callable[[T, _Planner], R], items: Sequence[T]) -> Iterator[R]:
        """Yield ``task(item, planner)`` of every item in turn, and tell `doing` and how far."""
        self._progress(doing)
        if self._workers.takes(len(items)):
            self._here.let_go()
        done = self._workers.map(task, items, self._setup, here=lambda: self._here)
        for number, result in enumerate(done, 1):
            if len(items) > 1:
                self._progress(f"{doing}: {number} of {len(items)} windows are done")
            yield result


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


def _count(window: WindowRange, planner: _Planner) -> tuple[int, Counter[str]]:
    """Return the packs of a window, and how many samples are dropped why."""
    plan = planner.plan(window)
    reasons = Counter(plan.dropped["reason"].to_pylist())
    return (plan.num_packs if plan.items.num_samples else 0), reasons


def _first_packs(planners: _Planners, job: PlanJob) -> int:
    """Return the packs of the first window that has some.

    Raises:
        OptionError, SourceError: none has.
    """
    reasons = Counter[str]()
    for window in job.windows:
        for num_packs, dropped in planners.run("packing samples", _count, [window]):
            if num_packs:
                return num_packs
            reasons += dropped
    if "too_long" in reasons and not {"mix", "holdout", "consumed"} & reasons.keys():
        raise OptionError(
            f"capacity {job.options.longest} is below every usable sample of {job.table.uri}: "
            "raise --capacity"
        )
    told = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
    raise SourceError(
        f"{job.table.uri} holds no usable sample ({told or 'no row'}): nothing to pack"
    )


@dataclass(frozen=True, slots=True)
class _ToWrite:
    """A window to be written into a folder of its own in `staging`, `block` packs per step; None
    if it is only added up."""

    window: WindowRange
    block: int
    staging: Path | None


_SourceSums = tuple[str | None, int, int, int]
"""A source's name, samples, Σ label_tokens, and usable samples that do not know theirs."""


def _write(todo: _ToWrite, planner: _Planner) -> tuple[Path, Window, list[_SourceSums]]:
    """Write a window into a folder that no other try has."""
    assert todo.staging is not None
    folder = todo.staging / f"{todo.window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        return folder, *_add_up(todo, planner, folder)
    except BaseException:
        remove_tree(folder)
        raise


def _add_up(
    todo: _ToWrite, planner: _Planner, folder: Path | None = None
) -> tuple[Window, list[_SourceSums]]:
    """Return the sums of a window, whose tables are written into `folder` if one is given."""
    plan = planner.plan(todo.window)
    planner.let_go()
    window = write_window(folder, plan, todo.block)
    is_bare = planner.table.manifest is None
    return window, _by_source(plan.items.rows.frame) if is_bare else []


def _by_source(frame: pl.DataFrame) -> list[_SourceSums]:
    if "source" not in frame.columns:
        return []
    labels = pl.lit(None, pl.Int64)
    if "label_tokens" in frame.columns:
        labels = pl.col("label_tokens").cast(pl.Int64)
    unknown = labels.is_null() & (pl.col("length") > 0)
    # Columns first: older releases of Polars sum up no literal.
    columns = frame.lazy().select("source", labels.alias("sum"), unknown.alias("unknown"))
    grouped = columns.group_by("source").agg(pl.len(), pl.col("sum", "unknown").sum())
    return grouped.collect().rows()


def _sources(
    table: Lengths, windows: Sequence[Window], of_sources: Iterable[_SourceSums]
) -> tuple[Source, ...]:
    """The sources in the order of the lengths table, with what became of their samples; those of a
    bare table by name, as its rows have them."""
    dropped = Counter[str]()
    for window in windows:
        dropped.update(window.dropped_of)
    stated: Iterable[Mapping[str, Any]]
    if table.manifest is not None:
        stated = [source.to_json() for source in table.manifest.sources]
    else:
        sums: dict[str, list[int]] = {}
        for name, *more in of_sources:
            if name is not None:
                before = sums.setdefault(name, [0, 0, 0])
                sums[name] = [one + other for one, other in zip(before, more, strict=True)]
        stated = [
            {
                "name": name,
                "media_root": None,
                "num_samples": samples,
                "num_label_tokens": None if unknown else labels,
            }
            for name, (samples, labels, unknown) in sorted(sums.items())
        ]
    return tuple(
        decoded(Source, {**source, "num_dropped": dropped[source["name"]]}) for source in stated
    )


def _lengths_entry(table: Lengths) -> LengthsOf:
    """Return what the snapshot says of its lengths."""
    manifest = table.manifest
    return LengthsOf(
        uri=table.uri,
        fingerprint=table.fingerprint(),
        num_samples=table.num_samples,
        encoder=table.encoder,
        methods=table.methods,
        pattern=table.is_pattern,
        transform=None if manifest is None else manifest.transform,
    )
