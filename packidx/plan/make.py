"""Plan and write each window of a job, keeping one in memory at a time.

A window is a pure function of its rows and the options: files in a folder of its own, with numbers
of their own, and their sums. So windows may be planned anywhere and twice. How many packs are a
step, which no window knows by itself, is decided by the first window that has packs.
"""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from packidx.errors import MismatchError, OptionError, SourceError
from packidx.format.index import IndexManifest, LengthsOf, Options, Result, Source, Window
from packidx.format.manifest import decode_json
from packidx.index.writer import open_staging, publish_snapshot
from packidx.io.files import remove_tree
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.job import PlanJob, WindowRange, sources_of_bare
from packidx.plan.schedule import blocks_of
from packidx.plan.select.rules import Rules
from packidx.plan.window import WindowPlan, plan_window
from packidx.plan.write import write_window
from packidx.run.workers import Workers

Progress = Callable[[str], None]
Opened = tuple[Lengths, Options, Rules]
Made = tuple[Path | None, Window]
"""Folder of a window's files, if they are written, and their sums."""


def make_plan(workers: Workers, job: PlanJob, progress: Progress) -> tuple[IndexManifest, bool]:
    """Plan and write every window: by `workers`, or in this process if they do not take so many.

    Returns:
        the snapshot's manifest, and True if this very plan was there already.

    Raises:
        OptionError, SourceError: there is nothing to pack, and nothing is written; a worker died.
        MismatchError: the lengths are others for a worker.
    """
    first = [first_plan(job, progress)]
    with open_staging(job.output) as staging:
        manifest, folders = plan_windows(workers, job, first, staging, progress)
        progress("publishing")
        return publish_snapshot(
            job.output,
            manifest,
            folders,
            lambda done, total: progress(f"publishing: {done} of {total} files are uploaded"),
        )


def first_plan(job: PlanJob, progress: Progress) -> WindowPlan:
    """Plan the first window that has packs.

    Raises:
        OptionError, SourceError: none has.
    """
    progress("packing samples")
    reasons = Counter[str]()
    for window in job.windows:
        plan = plan_window(job.table, window, job.options, job.rules)
        if plan.items.num_samples:
            return plan
        reasons.update(plan.dropped["reason"].to_pylist())
    if "too_long" in reasons and not {"mix", "holdout", "consumed"} & reasons.keys():
        raise OptionError(
            f"capacity {job.options.longest} is below every usable sample of {job.table.uri}: "
            "raise --capacity"
        )
    listed = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
    raise SourceError(
        f"{job.table.uri} holds no usable sample ({listed or 'no row'}): nothing to pack"
    )


def plan_windows(
    workers: Workers,
    job: PlanJob,
    first: list[WindowPlan],
    staging: Path | None,
    progress: Progress,
) -> tuple[IndexManifest, list[Path]]:
    """Plan the windows of a job, and return its manifest, without ids, and a folder for each
    window that is written.

    Args:
        first: the plan that is there already; it is taken out of the list.
        staging: folder to write into; None writes nothing.
    """
    doing = "packing samples" if staging is None else "writing packs"
    progress(doing)
    number, block = first[0].window.number, job.block(first[0].slots.num_packs)
    made = [_write_window(first.pop(), block, staging)]
    others = [window for window in job.windows if window.number != number]
    setup = functools.partial(
        _open_table, job.table.uri, _identify_table(job.table), job.options, job.rules
    )
    task = functools.partial(_plan_and_write, block=block, staging=staging)
    here = job.table, job.options, job.rules
    for result in workers.map(task, others, setup, here=lambda: here):
        made.append(result)
        progress(f"{doing}: {len(made)} of {len(job.windows)} windows are done")
    made.insert(number, made.pop(0))
    folders = [folder for folder, _ in made if folder is not None]
    return _make_manifest(job, block, [window for _, window in made]), folders


def _identify_table(table: Lengths) -> tuple[str | None, int]:
    """Return a table's fingerprint, None of a bare one, and how many rows it has."""
    return None if table.manifest is None else table.manifest.fingerprint, table.num_samples


def _open_table(uri: str, stated: tuple[str | None, int], options: Options, rules: Rules) -> Opened:
    """Open the lengths in a worker, which are those of the driver (`_identify_table`)."""
    table = read_lengths(uri)
    if (found := _identify_table(table)) != stated:
        raise MismatchError(
            f"{uri} has {found[1]} rows and fingerprint {found[0]} here, the driver's has "
            f"{stated[1]} and {stated[0]}: plan again when nothing writes to it"
        )
    return table, options, rules


def _plan_and_write(window: WindowRange, opened: Opened, block: int, staging: Path | None) -> Made:
    table, options, rules = opened
    return _write_window(plan_window(table, window, options, rules), block, staging)


def _write_window(plan: WindowPlan, block: int, staging: Path | None) -> Made:
    """Write a window into a folder of `staging` that no other try has, `block` packs per step; with
    None it is only added up."""
    if staging is None:
        return None, write_window(None, plan, block)
    folder = staging / f"{plan.window.number}-{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        return folder, write_window(folder, plan, block)
    except BaseException:
        remove_tree(folder)
        raise


def _make_manifest(job: PlanJob, block: int, windows: Sequence[Window]) -> IndexManifest:
    table, manifest = job.table, job.table.manifest
    blocks = blocks_of(job.options.schedule, block, job.options.micro_steps)
    dropped = Counter[str]()
    for window in windows:
        dropped.update(window.dropped_of)
    sources = [source.to_json() for source in manifest.sources] if manifest else None
    stated = sources_of_bare(table) if sources is None else sources
    own = (decode_json(Source, {**each, "num_dropped": dropped[each["name"]]}) for each in stated)
    lengths = LengthsOf(
        uri=table.uri,
        fingerprint=table.fingerprint(),
        num_samples=table.num_samples,
        encoder=None if manifest is None else manifest.encoder,
        methods=table.methods,
        pattern=table.is_pattern,
        transform=None if manifest is None else manifest.transform,
    )
    return IndexManifest(
        snapshot_id="",
        parent=None,
        lengths=lengths,
        options=job.options,
        result=Result.of(windows, job.options, blocks),
        sources=tuple(own),
        shards=table.shards,
        windows=tuple(windows),
        created="",
        recipe=job.recipe,
    )
