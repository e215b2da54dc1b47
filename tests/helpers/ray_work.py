"""What tests run in Ray's processes: encoders that die or wait, a write that dies half-way."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from packidx.index.window_files import WindowFiles
from packidx.plan import make as tasks

WRITE = tasks._write


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def die(*args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class Words:
    """As many tokens as words; whoever comes first, does something else before.

    Args:
        mark: file that says that somebody has come.
        first: what that one does.
    """

    def __init__(self, mark: Path | None = None, first: str = "") -> None:
        self.mark, self.first = mark, first

    def fingerprint(self) -> str:
        return "words"

    def count(self, record: dict[str, Any]) -> int:
        if self.first == "die_late":
            self.die_late(len(record["messages"][0]["content"].split()))
        elif self.mark is not None and not self.mark.exists():
            getattr(self, self.first)()
        return len(record["messages"][0]["content"].split()) + 1

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [1] * self.count(record)}

    def die(self) -> None:
        assert self.mark is not None
        self.mark.touch()
        die()

    def die_late(self, words: int) -> None:
        """At the records of the last of nine shards, whenever they come."""
        if words >= 600 + 7 * 8:
            die()

    def wait(self) -> None:
        assert self.mark is not None
        self.mark.touch()
        time.sleep(600)

    def wait_elsewhere(self) -> None:
        """Not on the node with the mark's name."""
        import ray

        assert self.mark is not None
        if ray.get_runtime_context().get_node_id() != self.mark.name:
            self.wait()


def dying_write(todo: Any, planner: Any) -> Any:
    """Write a window; the first try at the second one dies when its files are to be closed."""
    snapshots = next(folder for folder in todo.folder.parents if folder.name == "snapshots")
    mark = snapshots.parent.parent / "mark"
    if todo.solved.window.number == 1 and not mark.exists():
        mark.touch()
        WindowFiles.close = die  # type: ignore[method-assign, assignment]
    return WRITE(todo, planner)


def changed_solution(window: Any, planner: Any) -> Any:
    """A window that seems to hold a pack more when it is solved than when it is written."""
    solved = tasks._solve(window, planner)
    return replace(solved, packs=(solved.packs[0] + 1,))
