"""What a reader does about samples that are not as planned or cannot be read."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from packidx.errors import BadRecord, OptionError, PackidxError, SourceError
from packidx.io.stores import is_transient

ON_MISMATCH = ("error", "drop", "truncate")
ON_ERROR = ("raise", "hole")
BACKOFF = 0.1  # seconds before the first retry, twice as many before each further one

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of `PackedDataset` of these names."""

    on_mismatch: str = "error"
    on_error: str = "raise"
    retries: int = 3

    def __post_init__(self) -> None:
        for name, value, known in (
            ("on_mismatch", self.on_mismatch, ON_MISMATCH),
            ("on_error", self.on_error, ON_ERROR),
        ):
            if value not in known:
                raise OptionError(f"{name} {value!r} is none of {', '.join(known)}")
        if operator.index(self.retries) < 0:
            raise OptionError(f"retries is {self.retries}: it must be 0 or more")

    @property
    def makes_holes(self) -> bool:
        return self.on_mismatch != "error" or self.on_error == "hole"


def is_of_the_sample(error: Exception) -> bool:
    """Whether `error` may concern one sample alone, not the plan, an option or an installation."""
    if isinstance(error, PackidxError):
        return isinstance(error, BadRecord | SourceError)
    return not isinstance(error, MemoryError | ImportError)


def retried(read: Callable[[], T], retries: int) -> tuple[T, Exception | None]:
    """``read()``, again after input or output that failed and may work another time.

    Returns:
        what it returned, and the last error before it did.
    """
    failed: Exception | None = None
    for attempt in range(retries):
        try:
            return read(), failed
        except Exception as error:
            if not is_transient(error):
                raise
            failed = error
        time.sleep(BACKOFF * 2**attempt)
    return read(), failed
