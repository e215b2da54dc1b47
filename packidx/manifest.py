"""Reading a manifest of either kind: one rule for formats and versions (FORMAT.md)."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from packidx.errors import FormatError
from packidx.schema import FORMAT_VERSION


def load_manifest(path: Path, expected: str, keys: Collection[str], remedy: str) -> dict[str, Any]:
    """The manifest at `path`, checked for format, version and the presence of `keys`.

    Args:
        expected: the format it must have.
        remedy: what the user should do where it is not one; ends the sentence.

    Raises:
        FormatError: not JSON, of another format, written by a newer packidx, or incomplete.
    """
    try:
        manifest = json.loads(path.read_bytes())
        found, version = manifest["format"], manifest["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = expected.removeprefix("packidx-")
        raise FormatError(f"{path} is no {kind} manifest ({error!r}); {remedy}") from None
    if found != expected:
        raise FormatError(f"{path} has format {found!r}, not {expected!r}; {remedy}")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        known = f"this packidx knows up to {FORMAT_VERSION}"
        raise FormatError(f"{path} has version {version}; {known}: upgrade packidx")
    missing = sorted(set(keys) - manifest.keys())
    if missing:
        raise FormatError(f"{path} lacks {', '.join(missing)}; {remedy}")
    return dict(manifest)
