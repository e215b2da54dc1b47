"""Versions of what makes a table."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("packidx", "numpy", "pyarrow", "polars", "orjson", "pillow", "tokenizers", "jinja2")


def list_versions() -> dict[str, str]:
    """Versions of what makes a table: recorded, never hashed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        versions[package] = installed_version(package) or "not installed as a package"
    return versions


@cache
def installed_version(name: str) -> str | None:
    """The version of a package, None if it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
