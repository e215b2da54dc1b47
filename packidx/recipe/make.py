"""The part of a run that makes a plan: it is loaded only when something changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from packidx.index import Index, open_index
from packidx.inspect.report import write_report
from packidx.inspect.verify import verify
from packidx.inspect.verify.check import Check
from packidx.plan import PlanSummary
from packidx.plan.api import plan_packs
from packidx.recipe.done import REPORT, why_no_report
from packidx.recipe.recipe import Recipe

Doing = Callable[[str], None]


def planned(
    recipe: Recipe,
    text: str,
    lengths: str,
    index: str,
    workers: int | None,
    engine: str,
    doing: Doing,
) -> PlanSummary:
    """The plan of `recipe`, whose text is kept with it."""
    windows = 1 if engine == "local" else workers
    return plan_packs(
        lengths,
        index,
        recipe.plan,
        workers=windows,
        engine=engine,
        recipe=text,
        progress=doing,
    )


def reported(named: str, folder: str, doing: Doing) -> tuple[str | None, str | None]:
    """Where the report of the plan `named` lies now, or why there is none."""
    why_not = why_no_report(folder)
    if why_not is not None:
        return None, why_not
    path = os.path.join(folder, REPORT)
    write_report(named, path, progress=doing)
    return path, None


def verified(named: str, recipe: Recipe, num_sampled: int, doing: Doing) -> tuple[Check, ...]:
    """What is found of the plan `named`, some samples encoded for real."""
    index = open_index(named)
    encoder = _encoder(index, recipe.estimate) if num_sampled else None
    transform = recipe.estimate.get("transform") if num_sampled else None
    checks = []
    for check in verify(index, encoder=encoder, transform=transform, num_sampled=num_sampled):
        checks.append(check)
        doing(f"verifying: {check.name}")
    return tuple(checks)


def _encoder(index: Index, estimate: Mapping[str, Any]) -> Any:
    from packidx.user_code import load_named

    if estimate.get("encode"):
        return load_named(estimate["encode"], "encode")
    from packidx.encode import ProcessorEncoder
    from packidx.processor.labels import DEFAULT_POLICY

    labels = estimate.get("labels") or DEFAULT_POLICY
    settings = estimate.get("processor_settings") or {}
    trust = estimate.get("trust_remote_code", False)
    return ProcessorEncoder(
        estimate["processor"], labels, settings=settings, trust_remote_code=trust
    )
