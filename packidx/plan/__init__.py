"""Planning: lengths in, an immutable snapshot of a pack index out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packidx.plan.options import PlanOptions

if TYPE_CHECKING:
    from packidx.plan.api import PlanSummary, plan_packs, preview_plan

__all__ = ["PlanOptions", "PlanSummary", "plan_packs", "preview_plan"]


def __getattr__(name: str) -> Any:
    """Import the planner when it is first used: its options alone load no library."""
    if name not in __all__:
        raise AttributeError(f"module 'packidx.plan' has no attribute {name!r}")
    from packidx.plan import api

    return getattr(api, name)
