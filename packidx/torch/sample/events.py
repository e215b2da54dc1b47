"""What went otherwise than planned while packs were read: recorded, counted, visible everywhere."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import uuid
import weakref
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any

from packidx.index import Sample

LIMIT = 1000  # records kept; beyond it events are only counted
_TEXT = 500  # characters of an error's text

_log = logging.getLogger("packidx.torch")


def event(
    kind: str, done: str, sample: Sample, error: BaseException, found: int | None = None
) -> dict[str, Any]:
    """One event as a plain dict, which goes into JSON and through a queue.

    Args:
        kind: ``'mismatch'`` (the sample is not what was planned), ``'unreadable'``, ``'retried'``
            (it could be read in the end) or ``'changed'`` (its shard seems to be another one).
        done: ``'hole'``, ``'truncated'``, ``'padded'`` or ``'read'``.
        sample: as planned.
        error: what happened.
        found: tokens that the sample was encoded to, None where it was not.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return {
        "kind": kind,
        "done": done,
        "pack": sample.pack_id,
        "position": sample.position,
        "sample_id": sample.sample_id,
        "key": sample.key,
        "source": sample.source,
        "planned": sample.length,
        "found": found,
        "label_tokens": sample.label_tokens,
        "error": text[:_TEXT],
    }


class Events:
    """The events of a dataset and of its copies in DataLoader workers, forked or spawned.

    A worker is another process, and what it meets must be seen in the one that trains: all append
    lines to one temporary file, which begins with the first event and goes with its owner.
    """

    def __init__(self) -> None:
        name = f"packidx-events-{uuid.uuid4().hex}.jsonl"
        self._path = os.path.join(tempfile.gettempdir(), name)
        self._reset()
        weakref.finalize(self, _remove, self._path, os.getpid())

    def _reset(self) -> None:
        self._taken = 0  # bytes of the file that are counted
        self._written = 0
        self._counts: Counter[str] = Counter()
        self._records: list[dict[str, Any]] = []

    @property
    def counts(self) -> dict[str, int]:
        """Events by kind: ``{'unreadable': 2}``."""
        self._take_in()
        return dict(self._counts)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The first events of every process (`event`), 1,000 at most."""
        self._take_in()
        return list(self._records)

    def __len__(self) -> int:
        """Events so far, recorded or only counted."""
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"Events({self.counts})"

    def add(self, one: dict[str, Any]) -> None:
        """Record an event, and say so in the log ``packidx.torch``."""
        self._written += 1
        kept = self._written <= LIMIT
        if kept:
            last = " (further ones are only counted)" if self._written == LIMIT else ""
            _log.warning("%s%s", describe(one), last)
        line = one if kept else {"kind": one["kind"]}
        try:
            # One write at the end of the file: lines of several processes do not mix.
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, json.dumps(line).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError:  # a full disk must not end the training: this process knows, and the log
            self._count(line)

    def _take_in(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._taken)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._taken += len(whole) + len(newline)
            for line in whole.splitlines():
                self._count(json.loads(line))

    def _count(self, one: dict[str, Any]) -> None:
        self._counts[one["kind"]] += 1
        if len(one) > 1 and len(self._records) < LIMIT:
            self._records.append(one)

    def __getstate__(self) -> str | None:
        """The file, for a worker that is being spawned; any other copy has events of its own."""
        return None if get_spawning_popen() is None else self._path

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.__getstate__(),)


def _restored(path: str | None) -> Events:
    if path is None:
        return Events()
    events = Events.__new__(Events)
    events._path = path
    events._reset()
    return events


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)


def describe(one: dict[str, Any]) -> str:
    """An event in one line."""
    found = "" if one["found"] is None else f", encoded to {one['found']}"
    return (
        f"pack {one['pack']}, sample {one['sample_id']} (key {one['key']!r}), planned as"
        f" {one['planned']} tokens{found}: {one['kind']}, {one['done']}: {one['error']}"
    )
