"""Whether packages can be imported, asked of other processes: some crash, and some take long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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
    """Import modules, each group in a process of its own, all groups at the same time.

    Behind a module that ends its process, the rest of its group goes on in a new one.
    """
    imported: dict[str, Imported] = {}
    running = [_Child(group) for group in groups]
    try:
        while running:
            child = running[0]
            answers, ending = child.wait()
            imported |= dict(zip(child.names, answers, strict=False))
            running.pop(0)
            if left := child.names[len(answers) :]:
                imported[left[0]] = Imported(ending)
                running += [_Child(left[1:])] if left[1:] else []
    finally:  # Ctrl-C does not wait for what is being imported
        for child in running:
            child.kill()
    return imported


class _Child:
    """A process that imports `names`, one after the other."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        # The parent's path, not the child's: it may have been changed since the start.
        told = json.dumps([sys.path, self.names])
        self._until = time.monotonic() + _TIMEOUT
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), told],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self) -> tuple[list[Imported], str]:
        """What came of the names, as far as it came, and why it came no further."""
        try:
            written, _ = self._process.communicate(timeout=max(0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self.kill(), f"importing it took more than {_TIMEOUT} seconds"
        return _answers(written), _ending(self._process.returncode)

    def kill(self) -> list[Imported]:
        """End it now; gives what it said before."""
        self._process.kill()
        return _answers(self._process.communicate()[0])


def _answers(written: str) -> list[Imported]:
    """The lines of a process, up to the first that is none of its own or not whole."""
    answers = []
    for line in written.splitlines():
        try:
            error, facts = json.loads(line)
        except (ValueError, TypeError):
            break
        answers.append(Imported(error, facts))
    return answers


def _ending(status: int) -> str:
    if status >= 0:
        return "importing it ended its process" + (f" with status {status}" if status else "")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"importing it ended the process by signal {name}"
