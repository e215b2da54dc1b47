"""Counting by workers, each of which has a counter like the caller's."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from packidx.errors import MismatchError
from packidx.estimate.counter import CounterSettings, RecordCounter
from packidx.processor.counts import Compared
from packidx.records.media.opener import forget_media
from packidx.run.workers import Setup, Workers


@dataclass(frozen=True, slots=True)
class CounterSetup:
    """Makes the counter of a process that does nothing but count."""

    settings: CounterSettings

    def __call__(self) -> RecordCounter:
        # The processes are the parallelism, also of what a user's encoder imports.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        gc.set_threshold(100_000, 50, 100)  # records are many small objects, and hold no cycles
        forget_media()  # a process of the user's own session may have seen the media before
        counter = self.settings.build()
        counter.warm()
        return counter


def count_by(
    workers: Workers,
    count: Callable[[Any, RecordCounter], Any],
    items: Collection[Any],
    settings: CounterSettings,
    counter: RecordCounter,
    *,
    here: Setup,
    in_turn: bool = False,
) -> Iterator[tuple[int, Any]]:
    """(number, ``count(item, counter)``) of every item, as of `Workers.run`.

    Args:
        workers: who counts.
        count: picklable.
        items: what is counted.
        settings: of the counters.
        counter: the caller's, whose text backend and comparison all take over.
        here: makes the counter where the caller's process counts itself.
        in_turn: results come in the items' order.

    Raises:
        MismatchError: a worker loaded another processor, encoder or transform.
        OptionError, WorkerDied, SourceError: as of `Workers.run`.
    """
    known = counter.decided, counter.identity()
    call = functools.partial(_counted, count=count, settings=settings, known=known)
    return workers.run(call, items, CounterSetup(settings), here=here, in_turn=in_turn)


def _counted(
    item: Any,
    counter: RecordCounter,
    count: Callable[[Any, RecordCounter], Any],
    settings: CounterSettings,
    known: tuple[tuple[str, Compared], tuple[str | None, ...]],
) -> Any:
    counter.decided, identity = known
    if counter.identity() != identity:
        name = settings.processor or (counter.encoder.name if counter.encoder else "the transform")
        raise MismatchError(
            f"{name} changed while it was loaded: a worker has {counter.identity()}, the parent "
            f"{identity}; start again"
        )
    return count(item, counter)
