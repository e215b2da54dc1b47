"""Planning: lengths in, an immutable snapshot of a pack index out."""

from __future__ import annotations

from packidx.plan.api import PlanSummary, plan_packs
from packidx.plan.options.plan_options import PlanOptions

__all__ = ["PlanOptions", "PlanSummary", "plan_packs"]
