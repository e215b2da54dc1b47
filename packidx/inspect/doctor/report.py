"""All of it: what `packidx doctor` says, without what is nobody's business."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from packidx.inspect.doctor.finding import Finding, Given, Makers
from packidx.inspect.doctor.index import IndexFacts, examine_index
from packidx.inspect.doctor.machine import (
    Environment,
    environment_problems,
    examine_environment,
    lacking,
)

_HIDDEN = "***"
# Who signs in, by a name alone or with a password, in which anything but white space may be.
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/@:]*:(?!\d+/)\S*|[^\s/@]+)@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?#;'\"]+[?#;])\S+")
# Words of variables' names, at whose end these stand: HF_TOKEN, DB_PWD, APIKEY, not GIT_AUTHOR.
_SECRET = re.compile(
    "(KEY|TOKEN|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIAL|AUTH|BEARER|COOKIE|SIGNATURE)"
    r"S?(_|\d|$)",
    re.IGNORECASE,
)
_SHORTEST = 6  # characters of a secret; a shorter value stands in too many innocent words

T = TypeVar("T")


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
        return {"ok": self.failure is None, "failure": self.failure, **asdict(self)}


def examine(
    given: Given | None, makers: Makers, doing: Callable[[str], None] = lambda _: None
) -> Report:
    """Look at this environment and, where one is `given`, at an index from within it."""
    doing("importing packages")
    environment = examine_environment()
    index = None if given is None else examine_index(given, environment, makers, doing)
    findings = index.findings if index is not None else ()
    of_index = [finding for finding in findings if finding.state == "problem"]
    problems = environment_problems(environment, reading=index is not None)
    failure = None
    if index is not None and of_index:
        first = of_index[0]
        state = "is damaged" if first.name == "files" else "cannot be read here"
        failure = f"{index.path} {state}: {first.detail}{f': {first.do}' if first.do else ''}"
    elif index is None and (names := lacking(environment)):
        listed = ", ".join(names)
        failure = f"packidx needs {listed}, missing or broken here: install what the report names"
    return without_secrets(Report(environment, index, (*problems, *of_index), failure))


def without_secrets(value: T) -> T:
    """`value` with all texts in it, however deep, fit to be shown.

    Left out are users and passwords of URLs, what follows their `?`, `#` and `;`, and the values of
    environment variables that are named like a secret; the home folder is ``~``.
    """
    shown: T = _walked(value, partial(_shown, secrets=_secrets(), homes=_homes()))
    return shown


def _walked(value: Any, text: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list | tuple):
        return type(value)(_walked(inner, text) for inner in value)
    if isinstance(value, Mapping):
        return {name: _walked(inner, text) for name, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _walked(getattr(value, name), text) for name in names})
    return value


def _shown(text: str, secrets: list[str], homes: list[str]) -> str:
    for secret in secrets:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", _HIDDEN, text)
    text = _USER.sub(rf"\1{_HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{_HIDDEN}", text)
    for home in homes:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    return text


def _secrets() -> list[str]:
    """Values of variables that are named like secrets, the longest first."""
    secrets = {
        value
        for name, value in os.environ.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)
    }
    return sorted(secrets, key=len, reverse=True)


def _homes() -> list[str]:
    """The user's folder, as it is called and where it really is; the longest first."""
    home = os.path.expanduser("~")
    named = {path for path in (home, os.path.realpath(home)) if "/" in path and path != "/"}
    return sorted(named, key=len, reverse=True)
