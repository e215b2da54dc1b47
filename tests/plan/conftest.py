"""Every plan that a test of this folder makes is checked by the rules that plans keep."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from plan_rules import broken_rules

import packidx.plan
from packidx import open_index, plan_packs


@pytest.fixture(autouse=True, scope="module")
def checked_plans(request: pytest.FixtureRequest) -> Iterator[None]:
    """`plan_packs`, also as the command calls it, asserts that the plan breaks no rule."""

    @functools.wraps(plan_packs)
    def checked(*args: Any, **options: Any) -> Any:
        plan = plan_packs(*args, **options)
        assert broken_rules(open_index(f"{plan.path}@{plan.snapshot_id}")) == []
        return plan

    with pytest.MonkeyPatch.context() as patch:
        for module in (request.module, packidx.plan):
            if hasattr(module, "plan_packs"):
                patch.setattr(module, "plan_packs", checked)
        yield
