"""A few packs of an index, read and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packidx.index import Index
from packidx.records.fetch import Fetcher

_NUMBER = 5  # packs, spread over the index
_ENOUGH = 5.0  # seconds for packs after the first, after which no further one is read


@dataclass(frozen=True, slots=True)
class Reading:
    """How long packs took, one after the other in one process."""

    how: str
    """``'packs'``, built as for training, or ``'records'``, with their media and no more."""
    packs: tuple[int, ...]
    """Their numbers."""
    tokens: int
    """Of all of them, as planned."""
    first_seconds: float
    """Of the first one, what is imported and loaded for it included."""
    seconds: float
    """Of all others."""
    other_tokens: int
    """Of all others."""
    encode_seconds: float | None
    """Of `seconds`, what the encoder took; None where nothing was encoded."""


class TimedEncoder:
    """An encoder that knows how long it has worked; else it is what it is given."""

    def __init__(self, encode: Callable[[dict[str, Any]], Any]) -> None:
        self._encode = encode
        self.seconds = 0.0

    def __call__(self, record: dict[str, Any]) -> Any:
        start = time.perf_counter()
        try:
            return self._encode(record)
        finally:
            self.seconds += time.perf_counter() - start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encode, name)


def chosen_packs(index: Index) -> list[int]:
    """The first pack, and some more, spread over the index."""
    number = min(_NUMBER, index.num_packs)
    return sorted({at * index.num_packs // number for at in range(number)})


def read_packs(index: Index, dataset: Any, encoder: TimedEncoder) -> Reading:
    """Build packs as training does; `dataset` has `encoder`.

    Raises:
        Exception: whatever reading or encoding raises.
    """
    return _timed(index, "packs", lambda number: dataset[number], encoder)


def read_records(index: Index) -> Reading:
    """Read the records of packs and open their media.

    Raises:
        PackidxError: a record, its media or its shard cannot be read.
    """
    fetcher = Fetcher(index)

    def read(number: int) -> None:
        samples = index.pack(number).samples
        ready = fetcher.read_together(samples)
        for at, sample in enumerate(samples):
            if at not in ready:
                fetcher.read(sample)

    return _timed(index, "records", read, None)


def _timed(
    index: Index, how: str, read: Callable[[int], Any], encoder: TimedEncoder | None
) -> Reading:
    took: list[float] = []
    encoded = 0.0
    numbers = chosen_packs(index)
    for number in numbers:
        start = time.perf_counter()
        read(number)
        took.append(time.perf_counter() - start)
        if len(took) == 1 and encoder is not None:
            encoded = encoder.seconds
        if sum(took[1:]) > _ENOUGH:
            break
    read_ones = numbers[: len(took)]
    tokens = [int(index.stats(number)["length"]) for number in read_ones]
    return Reading(
        how=how,
        packs=tuple(read_ones),
        tokens=sum(tokens),
        first_seconds=took[0],
        seconds=sum(took[1:]),
        other_tokens=sum(tokens[1:]),
        encode_seconds=None if encoder is None else encoder.seconds - encoded,
    )


def milliseconds(reading: Reading) -> tuple[float, float, float | None]:
    """Of a pack after the first one, its tokens per second, and the encoder's share of its time."""
    share = None
    if reading.encode_seconds is not None and reading.seconds:
        share = reading.encode_seconds / reading.seconds
    rate = reading.other_tokens / max(reading.seconds, 1e-9)
    return 1e3 * reading.seconds / len(reading.packs[1:]), rate, share
