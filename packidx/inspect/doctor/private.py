"""What is nobody's business, taken out of a report that people attach to bug reports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

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


def without_secrets(value: T) -> T:
    """`value` with all texts in it, however deep, fit to be shown.

    Left out are users and passwords of URLs, what follows their `?`, `#` and `;`, and the values of
    environment variables that are named like a secret; the home folder is ``~``.
    """
    shown: T = _walked(value, partial(_shown, secrets=_secrets(os.environ), homes=_homes()))
    return shown


def _walked(value: Any, text: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list | tuple):
        return type(value)(_walked(inner, text) for inner in value)
    if isinstance(value, Mapping):
        return {name: _walked(inner, text) for name, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _walked(getattr(value, f.name), text) for f in fields(value)}
        )
    return value


def _shown(text: str, secrets: list[str], homes: list[str]) -> str:
    for secret in secrets:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", _HIDDEN, text)
    text = _USER.sub(rf"\1{_HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{_HIDDEN}", text)
    for home in homes:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    return text


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Values of variables that are named like secrets, the longest first."""
    secrets = {
        value
        for name, value in environment.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)
    }
    return sorted(secrets, key=len, reverse=True)


def _homes() -> list[str]:
    """The user's folder, as it is called and where it really is; the longest first."""
    home = os.path.expanduser("~")
    named = {home, os.path.realpath(home)}
    return sorted(
        (path for path in named if path.count("/") and len(path) > 1), key=len, reverse=True
    )
