"""What the manifests of lengths and of snapshots have in common (FORMAT.md)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packidx.io import storage
from packidx.io.copies import sizes

_PACKAGES = ("packidx", "numpy", "pyarrow", "polars", "orjson", "pillow", "tokenizers", "jinja2")


def unsound_file(folder: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with the first file that is not there in the size the manifest says.

    Raises:
        OSError: a store cannot be asked.
    """
    paths = [storage.join(str(folder), part["path"]) for part in manifest["files"]]
    for path, actual, part in zip(paths, sizes(paths), manifest["files"], strict=True):
        size = part["bytes"]
        if actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes"
            return f"{path} {state}, its manifest says {size}"
    return None


def software() -> dict[str, str]:
    """Versions of what makes a table: recorded, never hashed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
