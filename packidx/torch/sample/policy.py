"""What a reader does about samples that are not what was planned, or cannot be read."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from packidx.errors import OptionError

ON_MISMATCH = ("error", "drop", "truncate", "fit")
ON_ERROR = ("raise", "hole")


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
    def fits(self) -> bool:
        return self.on_mismatch == "fit"

    @property
    def makes_holes(self) -> bool:
        """Whether what stands for a sample must have the shape that was planned for it."""
        return not self.fits and (self.on_mismatch != "error" or self.on_error == "hole")
