"""What two plans differ in."""

from packidx.inspect.diff.api import diff
from packidx.inspect.diff.results import (
    Both,
    Example,
    Examples,
    PlanDiff,
    SampleDiff,
    Side,
    SourceDiff,
)

__all__ = [
    "Both",
    "Example",
    "Examples",
    "PlanDiff",
    "SampleDiff",
    "Side",
    "SourceDiff",
    "diff",
]
