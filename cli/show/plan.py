"""A plan that was made, in words."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

from .console import print_facts
from .facts import result_facts

if TYPE_CHECKING:
    from packidx.plan import PlanSummary


def print_plan(summary: PlanSummary) -> None:
    """Facts of the plan, where it lies, and a line to type."""
    output, ident = summary.path, summary.snapshot_id
    facts = result_facts(summary.snapshot)
    seconds = f"written in {summary.seconds:.1f} s"
    state = "exists already, HEAD points at it" if summary.existed else seconds
    facts["index"] = f"{output}@{ident[:12]} ({state})"
    query = "SELECT num_samples, count(*) AS packs FROM packs GROUP BY 1 ORDER BY 1"
    facts["try"] = f'{program()} sql {shlex.quote(output)} "{query}"'
    print_facts("Plan", facts)


def program() -> str:
    """`packidx` as the user can type it here: with its path if the shell would not find it."""
    called = sys.argv[0]
    if shutil.which("packidx") is None and os.path.basename(called) == "packidx":
        return shlex.quote(called)
    return "packidx"
