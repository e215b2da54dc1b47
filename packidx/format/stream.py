"""The rule of a stream, as a plan's strategy has it, and the log of what it gave out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packidx.errors import OptionError

RULES = {
    "next-fit": False,
    "best-fit": True,
    "balanced": True,
    "internvl": True,
    "window": True,
}
"""Name of a rule (`packidx.pack.streams`) -> whether it has a number, as in ``best-fit:16``."""

STREAM = "stream:"
_STRATEGY = re.compile(r"(?:stream:)?([a-z-]+)(?::([1-9]\d{0,5}))?(?:/([1-9]\d{0,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamRule:
    """A rule and the number of lanes that pack by it, as text ``stream:best-fit:16/64``."""

    name: str
    number: int | None
    lanes: int | None = None

    @classmethod
    def parse(cls, text: str) -> StreamRule:
        """Read a strategy, with or without ``stream:``; without ``/LANES`` these are None.

        Raises:
            OptionError: there is no such rule.
        """
        match = _STRATEGY.fullmatch(text)
        name, number, lanes = match.groups() if match else (text, None, None)
        if name not in RULES or RULES[name] != (number is not None):
            rules = ", ".join(f"{key}:N" if has else key for key, has in RULES.items())
            raise OptionError(f"the rule of a stream is {text!r:.60}: choose one of {rules}")
        return cls(name, *(int(part) if part else None for part in (number, lanes)))

    def check(self, max_images: int | None) -> None:
        """Refuse a rule that has no meaning without a limit of images.

        Raises:
            OptionError: there is none.
        """
        if self.name == "internvl" and max_images is None:
            raise OptionError(
                "the rule internvl fills packs up to a number of images: give --max-images"
            )

    def __str__(self) -> str:
        number = "" if self.number is None else f":{self.number}"
        lanes = "" if self.lanes is None else f"/{self.lanes}"
        return f"{STREAM}{self.name}{number}{lanes}"


LOG_RECIPE = "stream.json"
"""Of a log: what the stream is."""
LOG_COLUMNS = {
    "place": "int64",
    "position": "int32",
    "sample_id": "int64",
    "copy": "int32",
    "length": "int32",
    "trained": "bool",
}
"""Columns of a log's files: records of packs, and whether these were trained on, and not left out
at the end of an epoch because not every rank had one."""
