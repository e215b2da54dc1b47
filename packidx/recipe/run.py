"""A recipe carried out: what changed is counted, planned, verified, and drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packidx.digests import digest
from packidx.errors import MissingExtraError, OptionError
from packidx.estimate import LengthsSummary, estimate_lengths
from packidx.io import storage, urls
from packidx.recipe.done import REPORT, Done, digest_of, identity, is_done, note_done, noted, put
from packidx.recipe.recipe import SAMPLED, Recipe, written
from packidx.run.workers import Progress
from packidx.software import installed

if TYPE_CHECKING:
    from packidx.inspect.verify.check import Check
    from packidx.plan import PlanSummary

RECIPE = "recipe.yaml"
Doing = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """What a call of `pack_recipe` did."""

    output: str
    index: str
    """``INDEX@ID``, as commands and readers take it."""
    lengths: LengthsSummary
    plan: PlanSummary | None
    """None where nothing had changed."""
    checks: Sequence[Check] = ()
    num_sampled: int = 0
    """Samples that were encoded for real."""
    not_sampled: str | None = None
    """Why none were, in words."""
    report: str | None = None
    no_report: str | None = None
    """Why there is none, in words."""

    @property
    def unchanged(self) -> bool:
        """Whether all of it was there already."""
        return self.plan is None


def pack_recipe(
    recipe: Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    engine: str = "local",
    keep_recipe: bool = False,
    progress: Progress | None = None,
    doing: Doing = lambda words: None,
    counted: Callable[[LengthsSummary], None] = lambda summary: None,
) -> PackSummary:
    """Count what changed of a recipe's sources, plan, verify the plan, and draw the report.

    Args:
        recipe: what to pack.
        output: folder or URL for ``lengths``, ``index`` and ``report.html``; by default the
            recipe's own.
        workers, engine: as of `estimate_lengths` and `plan_packs`; no byte depends on them.
        keep_recipe: write the recipe to ``recipe.yaml`` of the output, too.
        progress: how far the count is.
        doing: told what else is being done, a few words at a time.
        counted: told of the lengths, before they are planned.

    Raises:
        PackidxError: as `estimate_lengths` and `plan_packs`. What of `checks` does not hold is no
            error here, and nothing is noted as finished then.
    """
    folder = _folder(recipe, output)
    text = recipe.text or written(recipe)
    before = noted(folder)
    if keep_recipe:
        _check_recipe(folder, text, before)
    lengths, index = urls.join(folder, "lengths"), urls.join(folder, "index")
    summary = estimate_lengths(
        list(recipe.sources),
        lengths,
        **recipe.estimate,
        workers=workers,
        engine=engine,
        progress=progress,
    )
    counted(summary)
    num_sampled, not_sampled = _sampled(recipe, summary)
    asked = identity(summary.fingerprint, recipe.plan, num_sampled)
    kept = digest(text.encode()) if keep_recipe else None
    is_kept = kept is None or digest_of(urls.join(folder, RECIPE)) == kept
    if summary.existed and before is not None and is_kept and is_done(folder, index, before, asked):
        return PackSummary(
            output=folder,
            index=f"{index}@{before.snapshot_id[:12]}",
            lengths=summary,
            plan=None,
            num_sampled=before.num_sampled,
            report=None if before.report is None else urls.join(folder, REPORT),
        )
    # This loads what a plan is made with.
    from packidx.recipe.make import planned, reported, verified

    plan = planned(recipe, text, lengths, index, workers, engine, doing)
    if keep_recipe:
        put(urls.join(folder, RECIPE), text.encode())
    named = f"{index}@{plan.snapshot_id[:12]}"
    checks = verified(named, recipe, num_sampled, doing)
    report, no_report = reported(named, folder, doing)
    made = PackSummary(
        output=folder,
        index=named,
        lengths=summary,
        plan=plan,
        checks=checks,
        num_sampled=sum(check.numbers.get("samples_encoded", 0) for check in checks),
        not_sampled=not_sampled,
        report=report,
        no_report=no_report,
    )
    if all(check.ok for check in checks):
        num_checks = sum(check.checked for check in checks)
        drawn = None if report is None else digest_of(report)
        note = Done(asked, plan.snapshot_id, num_checks, made.num_sampled, drawn, kept)
        note_done(folder, note)
    return made


def _folder(recipe: Recipe, output: str | os.PathLike[str] | None) -> str:
    folder = recipe.output if output is None else os.fspath(output)
    if folder is None:
        raise OptionError("nothing says where to: give -o DIR, or output: in the recipe")
    folder = urls.local_path(folder)
    if not urls.is_url(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise OptionError(f"output {folder} is a file: name a folder")
    return folder


def _check_recipe(folder: str, text: str, before: Done | None) -> None:
    """Raise an OptionError if there is a recipe that packidx has not written, or not so."""
    path = urls.join(folder, RECIPE)
    try:
        there = storage.read(path)
    except OSError:
        return
    written_here = before is not None and before.recipe == digest(there)
    if there != text.encode() and not written_here:
        raise OptionError(
            f"{path} is another recipe: run `packidx pack {path}`, change it to what you want now, "
            "or give another -o"
        )


def _sampled(recipe: Recipe, summary: LengthsSummary) -> tuple[int, str | None]:
    """How many samples are encoded for real in the end, and why none are."""
    estimate = recipe.estimate
    by = estimate.get("processor") or estimate.get("encode")
    wanted = SAMPLED if recipe.num_sampled is None else recipe.num_sampled
    if not wanted:
        return 0, "the recipe asks for none"
    if by is None:
        return 0, "no processor is named"
    inexact = sum(number for method, number in summary.methods.items() if method != "exact")
    if inexact:
        return 0, f"{inexact:,} lengths are not exact, so some would differ"
    if estimate.get("processor") and installed("transformers") is None:
        if recipe.num_sampled is None:
            return 0, "transformers is not installed here"
        raise MissingExtraError(
            "verify.sample encodes with the real processor: run pip install "
            '"packidx[transformers,torch]", or leave it out of the recipe'
        )
    return wanted, None
