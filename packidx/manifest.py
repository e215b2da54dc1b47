"""What the manifests of lengths and of snapshots have in common (FORMAT.md)."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packidx import storage
from packidx.copies import sizes
from packidx.errors import FormatError
from packidx.schema import FORMAT_VERSION

_PACKAGES = ("packidx", "numpy", "pyarrow", "polars", "orjson", "pillow", "tokenizers", "jinja2")


def load_manifest(
    path: str | Path, expected: str, keys: Mapping[str, type], remedy: str
) -> dict[str, Any]:
    """The manifest at `path`, checked for format, version and `keys`.

    Args:
        path: a file or a URL.
        expected: the format it must have.
        keys: what it must hold, and of which JSON type.
        remedy: what the user should do where it is not one; ends the sentence.

    Raises:
        FormatError: not JSON, of another format, written by a newer packidx, or incomplete.
        OSError: a store cannot be asked.
    """
    try:
        manifest = json.loads(storage.read(str(path)))
        found, written = manifest["format"], manifest["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        lasting = (FileNotFoundError, IsADirectoryError)
        if isinstance(error, OSError) and storage.is_url(str(path)) and type(error) not in lasting:
            raise  # the store's state says nothing of the manifest
        kind = expected.removeprefix("packidx-")
        raise FormatError(f"{path} is no {kind} manifest ({error!r}); {remedy}") from None
    if found != expected:
        raise FormatError(f"{path} has format {found!r}, not {expected!r}; {remedy}")
    if type(written) is not int or written < 1:
        raise FormatError(f"{path} has version {written!r}, which is none; {remedy}")
    if written > FORMAT_VERSION:
        known = f"this packidx knows up to {FORMAT_VERSION}"
        raise FormatError(f"{path} has version {written}; {known}: upgrade packidx")
    check_keys(path, manifest, keys, remedy)
    return dict(manifest)


def check_keys(path: str | Path, value: Any, keys: Mapping[str, type], remedy: str) -> None:
    """Raise a FormatError unless `value`, a part of `path`, is an object with `keys`."""
    if not isinstance(value, dict):
        raise FormatError(f"{path} has {value!r:.40} where an object should be; {remedy}")
    for key, kind in keys.items():
        if key not in value:
            raise FormatError(f"{path} lacks {key}; {remedy}")
        if not isinstance(value[key], kind) or (kind is int and type(value[key]) is bool):
            raise FormatError(
                f"{path} has {key} = {value[key]!r:.40}, no {kind.__name__}; {remedy}"
            )


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
