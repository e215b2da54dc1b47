"""What doctor's tests share: one look around, which imports all packages that are installed."""

from __future__ import annotations

import pytest

from packidx.inspect.doctor import report
from packidx.inspect.doctor.machine import Environment, examine_environment


@pytest.fixture(scope="session")
def environment() -> Environment:
    return examine_environment()


@pytest.fixture
def known(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has looked around already."""
    monkeypatch.setattr(report, "examine_environment", lambda: environment)
