"""Record what went otherwise than planned while packs were read, in every process."""

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
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

from packidx.index import PlannedSample

Happened = list[dict[str, Any]]
"""Events of one pack, in order."""

LIMIT = 1000  # records kept; beyond it events are only counted
_TEXT = 500  # characters of an error's text

_log = logging.getLogger("packidx.torch")


def make_event(
    kind: str, done: str, sample: PlannedSample, error: BaseException, length: int | None = None
) -> dict[str, Any]:
    """One event as a plain dict, which goes into JSON and through a queue.

    Args:
        kind: ``'mismatch'`` (the sample is not what was planned), ``'unreadable'``,
            ``'no_room'`` (it does not fit its pack, which was planned of other lengths) or
            ``'too_long'`` (of a stream that counts its records: no pack is so long).
        done: ``'fitted'`` or ``'left_out'``.
        sample: as planned; of a stream's record that is in no pack, pack and position are null.
        error: what happened.
        length: tokens that the sample was encoded to, None if it was not.
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
        "found": length,
        "label_tokens": sample.label_tokens,
        "error": text[:_TEXT],
    }


class LeftOut(NamedTuple):
    """Samples that were not trained on, and their tokens: planned ones where they are not known."""

    samples: int
    tokens: int


class Events:
    """The events of a dataset and of its copies in DataLoader workers, forked or spawned.

    A worker is another process, and what it meets must be seen in the one that trains: all append
    lines to one temporary file, which begins with the first event and goes with its owner.

    Args:
        path: of another one's file; None: a new one.
    """

    def __init__(self, path: str | None = None) -> None:
        name = f"packidx-events-{uuid.uuid4().hex}.jsonl"
        self._path = os.path.join(tempfile.gettempdir(), name) if path is None else path
        if path is None:
            weakref.finalize(self, _remove_file, self._path, os.getpid())
        self._written = 0

    @property
    def counts(self) -> dict[str, int]:
        """Events by kind: ``{'unreadable': 2}``."""
        return dict(Counter(event["kind"] for event in self._read_file()))

    @property
    def left_out(self) -> LeftOut:
        """Return what was left out so far, once for every time."""
        gone = [event for event in self._read_file() if event["done"] == "left_out"]
        tokens = (e["planned"] if e["found"] is None else e["found"] for e in gone)
        return LeftOut(len(gone), sum(tokens))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The first events of every process (`make_event`), 1,000 at most."""
        return [event for event in self._read_file() if "sample_id" in event][:LIMIT]

    def __len__(self) -> int:
        """Events so far, recorded or only counted."""
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"Events({self.counts})"

    def add(self, event: dict[str, Any]) -> None:
        """Record an event, and say so in the log ``packidx.torch``."""
        self._written += 1
        kept = self._written <= LIMIT
        if kept:
            last = " (further ones are only counted)" if self._written == LIMIT else ""
            encoded = "" if event["found"] is None else f", encoded to {event['found']}"
            _log.warning(
                f"pack {event['pack']}, sample {event['sample_id']} (key {event['key']!r}), planned"
                f" as {event['planned']} tokens{encoded}: {event['kind']}, {event['done']}:"
                f" {event['error']}{last}"
            )
        counted = ("kind", "done", "planned", "found")
        line = event if kept else {name: event[name] for name in counted}
        # A full disk must not end the training: the log says it, and the pack.
        private = partial(os.open, mode=0o600)
        with contextlib.suppress(OSError), open(self._path, "ab", 0, opener=private) as file:
            # One write at the end of the file: lines of several processes do not mix.
            file.write(json.dumps(line).encode() + b"\n")

    def _read_file(self) -> list[dict[str, Any]]:
        """Read the events of all processes, but for a line that is not whole yet."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            return list(map(json.loads, file.read().rpartition(b"\n")[0].splitlines()))
        return []

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the file for a worker that is spawned; any other copy has events of its own."""
        return Events, (None if get_spawning_popen() is None else self._path,)


def _remove_file(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)
