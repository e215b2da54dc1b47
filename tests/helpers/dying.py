"""A process that is killed right before a change that it is about to make to the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_RUN = """
import json, os, signal, sys
from packidx_cli.main import main

def run(left, below, arguments):
    def die(event, args):
        nonlocal left
        writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
        changes = changes or event == "sqlite3.connect"
        if (writes or changes) and str(args[0]).startswith(below):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout = open(os.devnull, "w")
    sys.addaudithook(die)
    return main(arguments)

for line in sys.stdin:
    child = os.fork()
    if not child:
        os._exit(run(*json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def dying(setup: str) -> str:
    """The script of a process that takes ``[n, folder, arguments]``, one a line, on stdin.

    Each is a run of `packidx` that dies right before its n-th change below the folder, forked so
    that it need not import everything again; its exit status is printed.

    Args:
        setup: what is imported and set before.
    """
    return setup + _RUN


def statuses(script: str, tasks: Iterable[list[Any]]) -> Iterator[int]:
    """Hand `tasks` to a script of this kind, one after the other; yield their exit statuses."""
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as runs:
        assert runs.stdin is not None and runs.stdout is not None
        for task in tasks:
            print(json.dumps(task), file=runs.stdin, flush=True)
            yield int(runs.stdout.readline())
        runs.stdin.close()
