"""What a lengths folder on disk holds, and whether a path may become one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx import schema
from packidx.errors import OptionError
from packidx.manifest import unsound_file

MANIFEST = "manifest.json"
_OWN_FILES = re.compile(r"manifest\.json|part-\d{5,}\.parquet")


def check_place(path: str) -> dict[str, Any] | None:
    """The manifest of the lengths table at `path`, None where there is nothing.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is no lengths table.
    """
    if not os.path.lexists(path):
        return None
    if not os.path.isdir(path):
        raise OptionError(f"{path} is a file: name a folder for the lengths table")
    names = sorted(os.listdir(path))
    if not names:
        return None
    manifest = _manifest(path) if MANIFEST in names else None
    if manifest is None:
        raise OptionError(
            f"{path} is not empty and no lengths table: it is left alone, so name another folder"
        )
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise OptionError(
            f"{path} also holds {foreign[0]}, which packidx did not write: move it away, "
            "or name another folder"
        )
    return manifest


def is_complete(path: str, manifest: dict[str, Any]) -> bool:
    """Whether every file of the manifest is there with its size."""
    try:
        return unsound_file(Path(path), manifest) is None
    except (OSError, KeyError, TypeError):
        return False


def _manifest(path: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(manifest, dict) and manifest.get("format") == schema.LENGTHS_FORMAT:
        return manifest
    return None


def first_rejected(path: str, reasons: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(key, detail) of the first row of a table that each of `reasons` has rejected."""
    found: dict[str, tuple[str, str]] = {}
    with open(os.path.join(path, MANIFEST), "rb") as file:
        parts = json.load(file)["files"]
    for part in parts:
        wanted = [reason for reason in reasons if reason not in found]
        if not wanted:
            break
        rows = pq.read_table(
            os.path.join(path, part["path"]),
            columns=["reason", "key", "detail"],
            filters=[("reason", "in", wanted)],
        )
        firsts = pc.index_in(pa.array(wanted), rows["reason"]).to_pylist()
        for reason, at in zip(wanted, firsts, strict=True):
            if at is not None:
                found[reason] = (rows["key"][at].as_py(), rows["detail"][at].as_py())
    return found
