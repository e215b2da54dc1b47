"""What of a ``tokenizer.json`` goes into a fingerprint, kept in the cache: making it takes longer
than counting a few records.

<cache>/tokenizers/<digest>.json    the SHA-256 of what follows, a newline, and JSON

The name is of all that decides the content: the file's bytes, the release of `tokenizers`, which
writes it anew, and the code that normalises it. So an entry is right or is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

import packidx
from packidx import digests
from packidx.io import cache, files
from packidx.processor import fingerprint
from packidx.software import installed


def normalised(content: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave before.

    A cache that cannot be read or written costs some tenths of a second, and no more.

    Args:
        content: SHA-256 of the ``tokenizer.json``.
        make: `normalise_tokenizer` of it.
    """
    path = _path(content)
    if path is None:
        return make()
    kept = _read(path)
    if kept is None:
        kept = make()
        data = orjson.dumps(kept)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_atomic(path, digests.digest(data).encode() + b"\n" + data)
    return kept


def _path(content: str) -> str | None:
    """Where it is kept; None where what decides it is not known."""
    release = installed("tokenizers")
    try:
        code = digests.file_digest(fingerprint.__file__)
    except OSError:  # not a file, as in an archive
        return None
    if release is None:
        return None
    parts = (content, release, packidx.__version__, code)
    name = digests.digest(*map(str.encode, parts))
    return os.path.join(cache.folder(), "tokenizers", f"{name}.json")


def _read(path: str) -> dict[str, Any] | None:
    try:
        stated, _, data = Path(path).read_bytes().partition(b"\n")
        if stated.decode() != digests.digest(data):
            return None
        kept: dict[str, Any] = orjson.loads(data)
        return kept
    except (OSError, ValueError):
        return None
