"""Whether packages can be imported, asked of other processes: some crash, and some take long.

Such a process runs this file as a script, with nothing of packidx but its argument: ``[sys.path,
names]`` as JSON. For each name it writes a line, ``[error or null, facts or null]`` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_CHILD = Path(__file__)
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


def _main() -> None:
    """Import what the argument names, and say what came of it."""
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # some packages print when they are imported
    os.dup2(null, 2)
    sys.path[:], names = json.loads(sys.argv.pop())
    for name in names:
        print(json.dumps(_imported(name)), file=out, flush=True)


def _imported(name: str) -> list[Any]:
    try:
        module = import_module(name)
        return [None, _torch_facts(module) if name == "torch" else None]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of which a package may raise any
        return [f"{type(error).__name__}: {' '.join(str(error).split())}"[:300], None]


def _torch_facts(torch: Any) -> dict[str, Any]:
    """What only torch itself can say of this machine's devices."""
    available = bool(torch.cuda.is_available())
    devices = range(torch.cuda.device_count() if available else 0)
    try:
        import_module("torch.nn.attention.flex_attention")
        has_flex = True
    except Exception:
        has_flex = False
    return {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": available,
        "devices": [torch.cuda.get_device_name(number) for number in devices],
        "has_flex": has_flex,
    }


if __name__ == "__main__":
    _main()
