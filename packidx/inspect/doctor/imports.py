"""Whether packages can be imported, asked of other processes: some crash, and some take long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("child.py")
_TIMEOUT = 120  # seconds for the packages of one process; a cold network drive takes many


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of importing a package."""

    error: str | None
    """Why it failed."""
    facts: dict[str, Any] | None = None
    """What torch says of this machine."""


def try_imports(groups: Sequence[Sequence[str]]) -> dict[str, Imported]:
    """Import modules, each group in a process of its own, all groups at the same time."""
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        found = list(pool.map(_try_group, groups))
    return {name: one for group in found for name, one in group.items()}


def _try_group(names: Sequence[str]) -> dict[str, Imported]:
    """One module after the other; behind one that ends its process, the rest in a new one."""
    found: dict[str, Imported] = {}
    while left := [name for name in names if name not in found]:
        lines, ending = _run(left)
        for name, line in zip(lines[::2], lines[1::2], strict=False):
            error, facts = json.loads(line)
            found[name] = Imported(error, facts)
        if not ending:
            break
        culprit = lines[-1] if len(lines) % 2 else left[0]
        found.setdefault(culprit, Imported(ending))
    return found


def _run(names: Sequence[str]) -> tuple[list[str], str]:
    """Lines that the process wrote, and how it ended where that was not at its end."""
    # The parent's path, not the child's: it may have been changed since the start.
    told = json.dumps([sys.path, list(names)])
    command = [sys.executable, str(_CHILD)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            written, _ = process.communicate(told, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            written, _ = process.communicate()
            return written.splitlines(), f"importing it took more than {_TIMEOUT} seconds"
    if process.returncode == -signal.SIGINT:  # by Ctrl-C, as the parent
        raise KeyboardInterrupt
    return written.splitlines(), _ending(process.returncode)


def _ending(status: int) -> str:
    if not status:
        return ""
    if status > 0:
        return f"importing it ended the process with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"importing it ended the process by signal {name}"
