"""What follows from a tokenizer's files, kept in the cache: making it takes longer than counting a
few records.

<cache>/tokenizers/<digest>.json    the SHA-256 of what follows, a newline, and JSON

The name is of all that decides the content: the files' bytes, the releases of what reads them, and
the code that does it. So an entry is right or is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

import packidx
from packidx import digests
from packidx.io import cache, files
from packidx.software import installed


def kept(code: str, parts: Sequence[str], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave before.

    A cache that cannot be read or written costs some time, and no more.

    Args:
        code: the file of what makes it.
        parts: all else that decides it.
    """
    path = _path(code, parts)
    if path is None:
        return make()
    if (content := _read(path)) is not None:
        return content
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            lock = stack.enter_context(open(os.path.join(os.path.dirname(path), ".lock"), "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one makes it, and others wait
        if (content := _read(path)) is None:
            content = make()
            data = orjson.dumps(content)
            with contextlib.suppress(OSError):
                files.write_atomic(path, digests.digest(data).encode() + b"\n" + data)
    return content


def _path(code: str, parts: Sequence[str]) -> str | None:
    """Where it is kept; None where what decides it is not known."""
    release = installed("tokenizers")
    try:
        of_code = digests.file_digest(code)
    except OSError:  # not a file, as in an archive
        return None
    if release is None:
        return None
    name = digests.digest(*map(str.encode, (*parts, release, packidx.__version__, of_code)))
    return os.path.join(cache.folder(), "tokenizers", f"{name}.json")


def _read(path: str) -> dict[str, Any] | None:
    try:
        stated, _, data = Path(path).read_bytes().partition(b"\n")
        if stated.decode() != digests.digest(data):
            return None
        content: dict[str, Any] = orjson.loads(data)
        return content
    except (OSError, ValueError):
        return None
