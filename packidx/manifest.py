"""Reading a manifest of either kind: one rule for formats and versions (FORMAT.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packidx.errors import FormatError
from packidx.schema import FORMAT_VERSION


def load_manifest(
    path: Path, expected: str, keys: Mapping[str, type], remedy: str
) -> dict[str, Any]:
    """The manifest at `path`, checked for format, version and `keys`.

    Args:
        expected: the format it must have.
        keys: what it must hold, and of which JSON type.
        remedy: what the user should do where it is not one; ends the sentence.

    Raises:
        FormatError: not JSON, of another format, written by a newer packidx, or incomplete.
    """
    try:
        manifest = json.loads(path.read_bytes())
        found, version = manifest["format"], manifest["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        kind = expected.removeprefix("packidx-")
        raise FormatError(f"{path} is no {kind} manifest ({error!r}); {remedy}") from None
    if found != expected:
        raise FormatError(f"{path} has format {found!r}, not {expected!r}; {remedy}")
    if type(version) is not int or version < 1:
        raise FormatError(f"{path} has version {version!r}, which is none; {remedy}")
    if version > FORMAT_VERSION:
        known = f"this packidx knows up to {FORMAT_VERSION}"
        raise FormatError(f"{path} has version {version}; {known}: upgrade packidx")
    check_keys(path, manifest, keys, remedy)
    return dict(manifest)


def check_keys(path: Path, value: Any, keys: Mapping[str, type], remedy: str) -> None:
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
