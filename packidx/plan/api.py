"""`plan_packs`: lengths in, an immutable snapshot of a pack index out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packidx.format.index import IndexManifest
from packidx.index.described import plan_line
from packidx.index.reader import Index
from packidx.io import urls
from packidx.io.output_folder import check_index
from packidx.lengths.table import read_lengths
from packidx.plan.job import prepare_job
from packidx.plan.make import Progress, first_plan, make_plan, plan_windows
from packidx.plan.options import PlanOptions, mix_of
from packidx.plan.resolved import options_to_inherit
from packidx.run.workers import open_workers


@dataclass(frozen=True, slots=True, repr=False)
class PlanSummary:
    """The result of a call of `plan_packs`.

    Attributes:
        snapshot_id: id of the snapshot, which HEAD now names.
        path: folder of the index.
        existed: the same plan was there already, with the paths of its lengths; its manifest is
            as it was.
        snapshot: what the snapshot's manifest says.
        seconds: wall time.
    """

    snapshot_id: str
    path: str
    existed: bool
    snapshot: IndexManifest
    seconds: float

    @property
    def manifest(self) -> dict[str, Any]:
        """The snapshot's manifest (FORMAT.md) as plain JSON, made anew each time."""
        return self.snapshot.to_json()

    def __repr__(self) -> str:
        how = "was there already" if self.existed else f"planned in {self.seconds:.1f} s"
        return f"PlanSummary({plan_line(self.path, self.snapshot)}, {how})"


def plan_packs(
    lengths: str | Path,
    output: str | Path,
    options: PlanOptions | None = None,
    *,
    resume: tuple[Index, dict[str, Any]] | None = None,
    workers: int | None = None,
    engine: str = "local",
    recipe: str | None = None,
    progress: Progress = lambda doing: None,
    **changes: Any,
) -> PlanSummary:
    """Assign every sample of `lengths` to a pack and publish the plan as a snapshot of `output`.

    Args:
        lengths: a lengths table, or any Parquet file, folder or glob with a `length` column.
        output: folder of the index, or a URL of one; made if it is not there.
        options: what to plan.
        resume: a snapshot, and the state (`PackSampler.state_at`) up to which training has had
            it: plans what is left of the epoch, under the new options. What its plan
            excluded stays out. `output` is its index.
        workers: windows at a time, each of which is whole in memory: of this machine one by
            default, in this process; of Ray as many as there are CPUs. The bytes are the same.
        engine: ``'local'``, processes of this machine, or ``'ray'``: the session of Ray that there
            is, the cluster that RAY_ADDRESS names, or a new one here.
        recipe: text to keep in the manifest, of what asks for this plan. A plan that is there
            already keeps its own.
        progress: is called with what is being done, a few words at a time.
        changes: fields of `PlanOptions`, instead of `options` (``capacity=8192, seed=1``) or to
            change some of them; a `mix` may be a dict, ``{"photos": 2}``. Without `options`, those
            of the snapshot that `resume` names hold where nothing else is said.

    Raises:
        OptionError: an option has no meaning for these lengths.
        MissingExtraError: Ray is asked for and not installed.
        SourceError, FormatError, MismatchError: `lengths` is not usable.
    """
    begin = time.perf_counter()
    if "mix" in changes:
        changes["mix"] = mix_of(changes["mix"])
    earlier = None if resume is None else resume[0]
    if options is not None:
        asked = replace(options, **changes)
    elif earlier is not None:
        before = options_to_inherit(earlier.snapshot.options)
        mix = changes.get("mix", ())
        if not any(weight.endswith("%") for weight in mix):  # those that are not named stay, too
            named = {weight.rpartition("=")[0]: weight for weight in (*before["mix"], *mix)}
            changes["mix"] = tuple(named.values())
        asked = PlanOptions(**{**before, **changes})
    else:
        asked = PlanOptions(**changes)
    output = urls.local_path(str(output))
    if urls.is_url(output):  # before the work is done
        check_index(output)
    at_a_time = 1 if engine == "local" and workers is None else workers
    with open_workers(engine, at_a_time) as planners:
        progress("reading lengths")
        table = read_lengths(str(lengths))
        job = prepare_job(table, output, asked, resume, progress)
        job = replace(job, recipe=recipe)
        snapshot, existed = make_plan(planners, job, progress)
    return PlanSummary(
        snapshot_id=snapshot.snapshot_id,
        path=output,
        existed=existed,
        snapshot=snapshot,
        seconds=time.perf_counter() - begin,
    )


def preview_plan(
    lengths: str | Path,
    options: PlanOptions,
    *,
    workers: int | None = None,
    engine: str = "local",
    progress: Progress = lambda doing: None,
) -> IndexManifest:
    """Return the manifest that `plan_packs` would publish, without ids; nothing is written.

    Args and Raises: as of `plan_packs`.
    """
    at_a_time = 1 if engine == "local" and workers is None else workers
    with open_workers(engine, at_a_time) as planners:
        progress("reading lengths")
        job = prepare_job(read_lengths(str(lengths)), "", options, None, progress)
        return plan_windows(planners, job, [first_plan(job, progress)], None, progress)[0]
