"""Versions of what makes a table."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("packidx", "numpy", "pyarrow", "polars", "orjson", "pillow", "tokenizers", "jinja2")


def software() -> dict[str, str]:
    """Versions of what makes a table: recorded, never hashed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed as a package"
    return versions
