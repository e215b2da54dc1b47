"""What takes seconds to find out, kept in the cache as JSON for all processes.

<cache>/<what>/<digest>.json    a digest of its content, and the content

The digest in its name is of all that decides it. A cache that cannot be read or written costs some
time, and no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from packidx import digests
from packidx.io import cache, files


def kept(
    what: str,
    parts: Sequence[str],
    make: Callable[[], dict[str, Any]],
    is_certain: Callable[[dict[str, Any]], bool] = bool,
) -> dict[str, Any]:
    """Return what `make` gives, or gave before.

    Args:
        what: names the folder.
        parts: all that decides it.
        is_certain: whether it may be kept.
    """
    home = os.path.join(cache.folder(), what)
    path = os.path.join(home, f"{digests.digest(*map(str.encode, parts))}.json")
    if (content := _read(path)) is not None:
        return content
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            os.makedirs(home, exist_ok=True)
            lock = stack.enter_context(open(os.path.join(home, ".lock"), "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one makes it, and others wait
        if (content := _read(path)) is not None:
            return content
        made = make()
        if is_certain(made):
            data = orjson.dumps(made)
            with contextlib.suppress(OSError):
                files.write_atomic(path, digests.digest(data).encode() + b"\n" + data)
        return made


def _read(path: str) -> dict[str, Any] | None:
    try:
        stated, _, data = Path(path).read_bytes().partition(b"\n")
        if stated.decode() != digests.digest(data):
            return None
        content: dict[str, Any] = orjson.loads(data)
        return content
    except (OSError, ValueError):
        return None
