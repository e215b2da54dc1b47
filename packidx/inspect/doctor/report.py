"""All of it: what `packidx doctor` says, without what is nobody's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from packidx.inspect.doctor.finding import Finding
from packidx.inspect.doctor.given import Given, Makers
from packidx.inspect.doctor.index import IndexFacts, examine_index
from packidx.inspect.doctor.machine import (
    Environment,
    environment_problems,
    examine_environment,
    lacking,
)
from packidx.inspect.doctor.private import without_secrets


@dataclass(frozen=True, slots=True)
class Report:
    """What `packidx doctor` found; fit to be shown to anybody."""

    environment: Environment
    index: IndexFacts | None
    """None where none was asked for."""
    problems: tuple[Finding, ...]
    """Of the environment, then of the index; each with what to do."""
    failure: str | None
    """Why the index cannot be read here or, without one, what packidx cannot work without."""

    def to_json(self) -> dict[str, Any]:
        """With the keys that README has."""
        stated = {"ok": self.failure is None, "failure": self.failure, **asdict(self)}
        return stated


def examine(
    given: Given | None, makers: Makers, doing: Callable[[str], None] = lambda _: None
) -> Report:
    """Look at this environment, and at an index from within it.

    Args:
        given: the index, and what the user named for it; None: no index.
        makers: what loads torch.
        doing: is told what is being done.
    """
    doing("importing packages")
    environment = examine_environment()
    index = None if given is None else examine_index(given, environment, makers, doing)
    problems = environment_problems(environment, reading=index is not None)
    of_index = (
        [finding for finding in index.findings if finding.state == "problem"] if index else []
    )
    report = Report(
        environment=environment,
        index=index,
        problems=(*problems, *of_index),
        failure=_failure(environment, index, of_index),
    )
    return without_secrets(report)


def _failure(
    environment: Environment, index: IndexFacts | None, of_index: list[Finding]
) -> str | None:
    if index is not None:
        if not of_index:
            return None
        first = of_index[0]
        state = "is damaged" if first.name == "files" else "cannot be read here"
        return f"{index.path} {state}: {first.detail}{f': {first.do}' if first.do else ''}"
    if not (names := lacking(environment)):
        return None
    listed = ", ".join(names)
    return f"packidx needs {listed}, missing or broken here: install what the report names"
