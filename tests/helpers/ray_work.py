"""What tests run in Ray's processes: encoders that die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


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
